#include "examples/models/registry.h"

#include "examples/models/gpt.h"
#include "examples/models/llama.h"
#include "examples/models/mlp.h"
#include "examples/models/moe.h"
#include "examples/models/text.h"
#include "examples/models/torchscript.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>

namespace piper::models {

namespace {

using nlohmann::json;

/// Where each key of a configuration goes.
class Keys {
public:
  explicit Keys(std::string model) : model_(std::move(model)) {}

  Keys& add(const char* key, int64_t* to) {
    return add(key, "a whole number", &json::is_number_integer, [to](const json& value) {
      *to = value.get<int64_t>();
      return true;
    });
  }
  Keys& add(const char* key, uint64_t* to) {
    return add(key, "a whole number, 0 or more", &json::is_number_unsigned,
               [to](const json& value) {
                 *to = value.get<uint64_t>();
                 return true;
               });
  }
  Keys& add(const char* key, double* to) {
    return add(key, "a number", &json::is_number, [to](const json& value) {
      *to = value.get<double>();
      return true;
    });
  }
  Keys& add(const char* key, bool* to) {
    return add(key, "true or false", &json::is_boolean, [to](const json& value) {
      *to = value.get<bool>();
      return true;
    });
  }
  Keys& add(const char* key, std::string* to) {
    return add(key, "a string", &json::is_string, [to](const json& value) {
      *to = value.get<std::string>();
      return true;
    });
  }
  Keys& add(const char* key, c10::ScalarType* to) {
    return add(key, "\"float32\" or \"float64\"", &json::is_string, [to](const json& value) {
      *to = value == "float64" ? c10::kDouble : c10::kFloat;
      return value == "float64" || value == "float32";
    });
  }

  Keys& add(const char* key, std::vector<int64_t>* to) {
    return add_each(key, "a list of whole numbers", &json::is_number_integer,
                    [to](const json& value) { to->push_back(value.get<int64_t>()); });
  }
  Keys& add(const char* key, std::vector<std::string>* to) {
    return add_each(key, "a list of strings", &json::is_string,
                    [to](const json& value) { to->push_back(value.get<std::string>()); });
  }
  /// Anything else; `store` says whether it could take the value.
  Keys& add(const char* key, const char* type, std::function<bool(const json&)> store) {
    keys_.push_back({key, type, [](const json&) { return true; }, std::move(store)});
    return *this;
  }

  Result<void> read(const std::string& text) const {
    const std::string where = model_ + " configuration";
    json object;
    try {
      object = json::parse(text);
    } catch (const json::parse_error& error) {
      // The byte that could not be read is number `error.byte`, counted from 1.
      const size_t at = std::min(error.byte > 0 ? error.byte - 1 : 0, text.size());
      const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<int64_t>(at), '\n');
      const size_t newline = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
      const size_t column = newline == std::string::npos ? at + 1 : at - newline;
      return user_error(fmt::format("malformed JSON at line {}, column {}", line, column), where);
    }
    return read(object, where);
  }
  Result<void> read(const json& object, const std::string& where) const {
    if (!object.is_object())
      return user_error("it is no JSON object", where, "write {\"key\": value, …}");
    for (const auto& [name, value] : object.items()) {
      auto key = std::find_if(keys_.begin(), keys_.end(),
                              [&](const Key& candidate) { return candidate.name == name; });
      if (key == keys_.end())
        return user_error(fmt::format("unknown key '{}'", name), where, "known are " + names());
      if (!key->is_type(value) || !key->store(value))
        return user_error(fmt::format("'{}' is {}", name, value.dump()), where,
                          "it must be " + key->type);
    }
    return {};
  }

private:
  struct Key {
    std::string name, type;
    std::function<bool(const json&)> is_type, store;
  };
  Keys& add(const char* key, const char* type, bool (json::*is_type)() const,
            std::function<bool(const json&)> store) {
    keys_.push_back({key, type, is_type, std::move(store)});
    return *this;
  }
  Keys& add_each(const char* key, const char* type, bool (json::*is_type)() const,
                 std::function<void(const json&)> store) {
    return add(key, type, [is_type, store = std::move(store)](const json& list) {
      const bool fits =
          list.is_array() &&
          std::all_of(list.begin(), list.end(), [&](const json& e) { return (e.*is_type)(); });
      if (fits)
        std::for_each(list.begin(), list.end(), store);
      return fits;
    });
  }
  std::string names() const {
    std::string list;
    for (const Key& key : keys_)
      list += (list.empty() ? "" : ", ") + key.name;
    return list;
  }

  std::string model_;
  std::vector<Key> keys_;
};

/// What is to be known of the text besides the model's own sizes.
Keys& add_text(Keys& keys, TextConfig* text) {
  return keys.add("data", &text->path)
      .add("seed", &text->seed)
      .add("sample_microbatches", &text->sample_microbatches)
      .add("holdout", &text->holdout);
}

/// What a decoder's sizes are, of the Llama family.
template <class Config> Keys& add_decoder(Keys& keys, Config* c) {
  return keys.add("layers", &c->layers)
      .add("d_model", &c->d_model)
      .add("heads", &c->heads)
      .add("kv_heads", &c->kv_heads)
      .add("d_ff", &c->d_ff)
      .add("seq", &c->seq)
      .add("batch", &c->batch)
      .add("vocab", &c->vocab)
      .add("rope_theta", &c->rope_theta)
      .add("norm_eps", &c->norm_eps)
      .add("dtype", &c->dtype);
}

/// Samples that fit the model.
template <class Config> Result<DataSource> text_for(const Config& c, TextConfig text) {
  text.seq = c.seq;
  text.batch = c.batch;
  text.vocab = c.vocab;
  return text_source(text);
}

constexpr std::pair<const char*, c10::ScalarType> kInputTypes[] = {
    {"float", c10::kFloat}, {"int64", c10::kLong}, {"int32", c10::kInt},
    {"uint8", c10::kByte},  {"bool", c10::kBool},
};

Result<RowType> read_input(const json& object, const std::string& where) {
  RowType input{.dtype = c10::kFloat};
  Keys keys("");
  keys.add("name", &input.input)
      .add("shape", &input.shape)
      .add("below", &input.below)
      .add("dtype", "float, int64, int32, uint8 or bool", [&](const json& value) {
        for (auto [name, type] : kInputTypes)
          if (value == name) {
            input.dtype = type;
            return true;
          }
        return false;
      });
  PIPER_CHECK_OK(keys.read(object, where));
  return input;
}

Result<TorchscriptConfig::Call> read_call(const json& object, const std::string& where) {
  TorchscriptConfig::Call call;
  Keys keys("");
  keys.add("call", &call.name)
      .add("module", &call.module)
      .add("method", &call.method)
      .add("inputs", &call.inputs)
      .add("annotations", "an object of whole numbers", [&](const json& value) {
        if (!value.is_object())
          return false;
        for (const auto& [name, index] : value.items()) {
          if (!index.is_number_integer())
            return false;
          call.annotations.push_back({name, index.get<int64_t>()});
        }
        return true;
      });
  PIPER_CHECK_OK(keys.read(object, where));
  return call;
}

/// Each element of the list by `read`, told which one it is.
template <class Element>
Result<std::vector<Element>> read_list(const json& list, const std::string& what,
                                       Result<Element> (*read)(const json&, const std::string&)) {
  std::vector<Element> elements;
  for (size_t i = 0; i < list.size(); ++i) {
    PIPER_TRY(Element element, read(list[i], fmt::format("{} {}", what, i)));
    elements.push_back(std::move(element));
  }
  return elements;
}

/// Text, saved rows or random ones.
Result<DataSource> rows_for(const TorchscriptConfig& c, const TextConfig& text) {
  if (text.path == "random")
    return random_rows(c.inputs, text.seed);
  if (text.path.ends_with(".pt"))
    return saved_rows(text.path, c.inputs, c.batch, text.holdout);
  TextConfig config = text;
  config.batch = c.batch;
  for (const RowType& input : c.inputs) {
    const bool known = input.input == "tokens" || input.input == "targets";
    if (!known || input.dtype != c10::kLong || input.shape.size() != 1 ||
        input.shape != c.inputs.front().shape)
      return user_error(fmt::format("text cannot feed the input '{}'", input.input), "data",
                        "text is for int64 inputs tokens and targets of one length; else give a "
                        ".pt file of tensors, or \"random\"");
    config.seq = input.shape.front();
  }
  return text_source(config);
}

} // namespace

Result<Model> make_gpt(const std::string& config_json) {
  GptConfig c;
  TextConfig text;
  Keys keys("gpt");
  keys.add("layers", &c.layers)
      .add("d_model", &c.d_model)
      .add("heads", &c.heads)
      .add("seq", &c.seq)
      .add("batch", &c.batch)
      .add("vocab", &c.vocab)
      .add("tied", &c.tied)
      .add("dtype", &c.dtype);
  PIPER_CHECK_OK(add_text(keys, &text).read(config_json));
  PIPER_CHECK_OK(check(c));
  PIPER_TRY(DataSource data, text_for(c, text));
  return gpt(c, std::move(data));
}

Result<Model> make_llama(const std::string& config_json) {
  LlamaConfig c;
  TextConfig text;
  Keys keys("llama");
  add_decoder(keys, &c).add("tied", &c.tied);
  PIPER_CHECK_OK(add_text(keys, &text).read(config_json));
  PIPER_CHECK_OK(check(c));
  PIPER_TRY(DataSource data, text_for(c, text));
  return llama(c, std::move(data));
}

Result<Model> make_moe(const std::string& config_json) {
  MoeConfig c;
  TextConfig text;
  Keys keys("moe");
  add_decoder(keys, &c)
      .add("experts", &c.experts)
      .add("top_k", &c.top_k)
      .add("balance_weight", &c.balance_weight);
  PIPER_CHECK_OK(add_text(keys, &text).read(config_json));
  PIPER_CHECK_OK(check(c));
  PIPER_TRY(DataSource data, text_for(c, text));
  return moe(c, std::move(data));
}

Result<Model> make_mlp(const std::string& config_json) {
  MlpConfig c;
  PIPER_CHECK_OK(Keys("mlp")
                     .add("layers", &c.layers)
                     .add("d_in", &c.d_in)
                     .add("d_hidden", &c.d_hidden)
                     .add("d_out", &c.d_out)
                     .add("batch", &c.batch)
                     .add("skip", &c.skip)
                     .add("dtype", &c.dtype)
                     .add("seed", &c.data_seed)
                     .read(config_json));
  return mlp(c);
}

Result<Model> make_torchscript(const std::string& config_json) {
  TorchscriptConfig c;
  TextConfig text;
  json inputs = json::array(), calls = json::array();
  Keys keys("torchscript");
  const auto keep = [](json& to) {
    return [&to](const json& value) {
      to = value;
      return value.is_array();
    };
  };
  keys.add("file", &c.file)
      .add("batch", &c.batch)
      .add("dtype", &c.dtype)
      .add("inputs", "a list of objects", keep(inputs))
      .add("calls", "a list of objects", keep(calls))
      .add("loss", "the name of a value, or {\"cross_entropy\" or \"mse\": [two of them]}",
           [&](const json& value) {
             if (value.is_string()) {
               c.loss = value.get<std::string>();
               return true;
             }
             if (!value.is_object() || value.size() != 1)
               return false;
             c.loss = value.begin().key();
             Keys of("");
             of.add(c.loss.c_str(), &c.loss_of);
             return of.read(value, "loss").ok() && !c.loss_of.empty();
           });
  PIPER_CHECK_OK(add_text(keys, &text).read(config_json));
  for (const auto& [key, is_missing] :
       {std::pair("file", c.file.empty()), std::pair("inputs", inputs.empty()),
        std::pair("calls", calls.empty()), std::pair("loss", c.loss.empty())})
    if (is_missing)
      return user_error(fmt::format("'{}' is missing", key), "torchscript configuration",
                        "a module is described by file, inputs, calls and loss");
  PIPER_TRY(c.inputs, read_list(inputs, "input", read_input));
  PIPER_TRY(c.calls, read_list(calls, "call", read_call));
  for (RowType& input : c.inputs)
    if (c10::isFloatingType(input.dtype))
      input.dtype = c.dtype;
  PIPER_TRY(DataSource data, rows_for(c, text));
  return torchscript(c, std::move(data));
}

} // namespace piper::models
