#include "compiler/cost/json_reader.h"

#include "ir/counting_iterator.h"
#include "ir/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace piper::compiler {

using Json = nlohmann::json;

namespace {

/// An object or array that is open.
struct Open {
  bool array = false;
  size_t index = 0; ///< of the element that comes next
  std::string key;  ///< that was read last
};

/// A step of a JSON pointer (RFC 6901).
std::string step(std::string_view key) {
  std::string out = "/";
  for (char letter : key)
    out += letter == '~' ? "~0" : letter == '/' ? "~1" : std::string(1, letter);
  return out;
}

std::string pointer_of(const std::vector<Open>& open) {
  std::string pointer;
  for (const Open& each : open)
    pointer += step(each.array ? std::to_string(each.index) : each.key);
  return pointer;
}

} // namespace

JsonDocument::JsonDocument(std::string_view text, std::string file) : file_(std::move(file)) {
  ir::TextPosition position;
  std::vector<Open> open;
  const auto close = [&] {
    open.pop_back();
    if (!open.empty() && open.back().array)
      ++open.back().index;
  };
  const auto on_event = [&](int, Json::parse_event_t event, Json& value) {
    switch (event) {
    case Json::parse_event_t::object_start:
    case Json::parse_event_t::array_start:
      places_.try_emplace(pointer_of(open), position.line, position.column);
      open.push_back({event == Json::parse_event_t::array_start});
      break;
    case Json::parse_event_t::key: {
      open.back().key = value.get<std::string>();
      const int begins =
          std::max(1, position.column - static_cast<int>(open.back().key.size()) - 1);
      if (!places_.try_emplace(pointer_of(open), position.line, begins).second)
        throw JsonFailure{
            user_error(fmt::format("the key \"{}\" stands twice in one object", open.back().key),
                       at(position.line, begins))};
      break;
    }
    case Json::parse_event_t::object_end:
    case Json::parse_event_t::array_end:
      close();
      break;
    case Json::parse_event_t::value:
      if (!open.empty() && open.back().array)
        ++open.back().index;
      break;
    }
    return true;
  };
  const ir::CountingIterator begin{text.data(), &position},
      end{text.data() + text.size(), &position};
  try {
    root_ = Json::parse(begin, end, on_event);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while …"
    const std::string_view what = error.what();
    int line = position.line, column = position.column;
    if (const size_t where = what.find("at line "); where != what.npos)
      std::sscanf(what.data() + where, "at line %d, column %d", &line, &column);
    const size_t colon = what.find(": ");
    throw JsonFailure{user_error(
        fmt::format("malformed JSON: {}", what.substr(colon == what.npos ? 0 : colon + 2)),
        at(line, column))};
  }
}

std::string JsonDocument::at(int line, int column) const {
  return file_.empty() ? fmt::format("line {}, column {}", line, column)
                       : fmt::format("{}:{}:{}", file_, line, column);
}

std::string JsonDocument::place(std::string pointer) const {
  while (true) {
    if (auto found = places_.find(pointer); found != places_.end())
      return at(found->second.first, found->second.second);
    if (pointer.empty())
      return at(1, 1);
    pointer.erase(pointer.rfind('/'));
  }
}

void JsonValue::fail(std::string message, std::string hint) const {
  std::string key = pointer_;
  std::replace(key.begin(), key.end(), '/', '.');
  throw JsonFailure{user_error(key.empty() ? std::move(message)
                                           : fmt::format("\"{}\" {}", key.substr(1), message),
                               document_->place(pointer_), std::move(hint))};
}

void JsonValue::fail_type(const char* wanted) const {
  fail(fmt::format("must be {}, found {}", wanted, value_->dump().substr(0, 80)));
}

void JsonValue::expect_object() const {
  if (!value_->is_object())
    fail_type("an object");
}

bool JsonValue::has(const std::string& key) const {
  expect_object();
  return value_->contains(key);
}

JsonValue JsonValue::operator[](const std::string& key) const {
  expect_object();
  const auto found = value_->find(key);
  if (found == value_->end())
    fail(fmt::format("has no \"{}\"", key));
  return {*document_, *found, pointer_ + step(key)};
}

std::vector<JsonValue> JsonValue::elements() const {
  if (!value_->is_array())
    fail_type("a list");
  std::vector<JsonValue> list;
  for (size_t i = 0; i < value_->size(); ++i)
    list.push_back({*document_, (*value_)[i], pointer_ + step(std::to_string(i))});
  return list;
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::items() const {
  expect_object();
  std::vector<std::pair<std::string, JsonValue>> list;
  for (const auto& [key, value] : value_->items())
    list.emplace_back(key, JsonValue{*document_, value, pointer_ + step(key)});
  return list;
}

void JsonValue::allow_only(std::initializer_list<const char*> keys) const {
  const std::vector<std::string> known(keys.begin(), keys.end());
  for (const auto& [key, value] : items())
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string near = ir::closest(key, known);
      value.fail("is no key that is known here",
                 fmt::format("{}known keys: {}",
                             near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near),
                             fmt::join(known, ", ")));
    }
}

double JsonValue::number(double least) const {
  if (!value_->is_number())
    fail_type("a number");
  const double number = value_->get<double>();
  if (!std::isfinite(number) || number < least)
    fail_type(fmt::format("a number of {} or more", least).c_str());
  return number;
}

int64_t JsonValue::integer(int64_t least) const {
  const double value = number(static_cast<double>(least));
  if (value != std::floor(value) || value > 9e18)
    fail_type("a whole number");
  return static_cast<int64_t>(value);
}

bool JsonValue::boolean() const {
  if (!value_->is_boolean())
    fail_type("true or false");
  return value_->get<bool>();
}

const std::string& JsonValue::string() const {
  if (!value_->is_string())
    fail_type("a string");
  return value_->get_ref<const std::string&>();
}

double JsonValue::number_or(const std::string& key, double otherwise) const {
  return has(key) ? (*this)[key].number(0) : otherwise;
}

int64_t JsonValue::integer_or(const std::string& key, int64_t otherwise) const {
  return has(key) ? (*this)[key].integer(0) : otherwise;
}

} // namespace piper::compiler
