#include "examples/models/registry.h"

#include "examples/models/gpt.h"
#include "examples/models/llama.h"
#include "examples/models/mlp.h"
#include "examples/models/moe.h"
#include "examples/models/text.h"

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

/// Samples that fit the model.
template <class Config> Result<DataSource> text_for(const Config& c, TextConfig text) {
  text.seq = c.seq;
  text.batch = c.batch;
  text.vocab = c.vocab;
  return text_source(text);
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
  keys.add("layers", &c.layers)
      .add("d_model", &c.d_model)
      .add("heads", &c.heads)
      .add("kv_heads", &c.kv_heads)
      .add("d_ff", &c.d_ff)
      .add("seq", &c.seq)
      .add("batch", &c.batch)
      .add("vocab", &c.vocab)
      .add("rope_theta", &c.rope_theta)
      .add("norm_eps", &c.norm_eps)
      .add("tied", &c.tied)
      .add("dtype", &c.dtype);
  PIPER_CHECK_OK(add_text(keys, &text).read(config_json));
  PIPER_CHECK_OK(check(c));
  PIPER_TRY(DataSource data, text_for(c, text));
  return llama(c, std::move(data));
}

Result<Model> make_moe(const std::string& config_json) {
  MoeConfig c;
  TextConfig text;
  Keys keys("moe");
  keys.add("layers", &c.layers)
      .add("d_model", &c.d_model)
      .add("heads", &c.heads)
      .add("kv_heads", &c.kv_heads)
      .add("experts", &c.experts)
      .add("top_k", &c.top_k)
      .add("d_ff", &c.d_ff)
      .add("seq", &c.seq)
      .add("batch", &c.batch)
      .add("vocab", &c.vocab)
      .add("rope_theta", &c.rope_theta)
      .add("norm_eps", &c.norm_eps)
      .add("balance_weight", &c.balance_weight)
      .add("dtype", &c.dtype);
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

} // namespace piper::models
