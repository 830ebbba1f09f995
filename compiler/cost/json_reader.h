// Reading the JSON of cost files: typed access to the keys of an object, with errors that say
// line, column and key.
#pragma once

#include "ir/result.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace piper::compiler {

/// Thrown while reading and caught by `read_json`; never leaves compiler/cost.
struct JsonFailure {
  Error error;
};

/// A parsed text that knows where each key and each object of it stands.
class JsonDocument {
public:
  /// Throws JsonFailure where the text is no JSON, or an object has a key twice.
  JsonDocument(std::string_view text, std::string file);

  const nlohmann::json& root() const { return root_; }
  /// "costs.json:3:7" of the value at `pointer` ("/calls/attn0"), or of what holds it.
  std::string place(std::string pointer) const;

private:
  std::string at(int line, int column) const;

  std::string file_;
  nlohmann::json root_;
  std::map<std::string, std::pair<int, int>> places_; ///< line and column, by JSON pointer
};

/// A value of the document. Every member throws JsonFailure with the place and the key.
class JsonValue {
public:
  explicit JsonValue(const JsonDocument& document)
      : document_(&document), value_(&document.root()) {}

  [[noreturn]] void fail(std::string message, std::string hint = {}) const;

  bool has(const std::string& key) const;
  JsonValue operator[](const std::string& key) const;           ///< of an object; must be there
  std::vector<JsonValue> elements() const;                      ///< of an array
  std::vector<std::pair<std::string, JsonValue>> items() const; ///< of an object
  void allow_only(std::initializer_list<const char*> keys) const;

  double number(double least) const; ///< finite
  int64_t integer(int64_t least) const;
  bool boolean() const;
  const std::string& string() const;

  double number_or(const std::string& key, double otherwise) const; ///< of 0 or more
  int64_t integer_or(const std::string& key, int64_t otherwise) const;

private:
  JsonValue(const JsonDocument& document, const nlohmann::json& value, std::string pointer)
      : document_(&document), value_(&value), pointer_(std::move(pointer)) {}
  void expect_object() const;
  [[noreturn]] void fail_type(const char* wanted) const;

  const JsonDocument* document_;
  const nlohmann::json* value_;
  std::string pointer_;
};

/// The result of `read(JsonValue)` on the text; `file` is used in errors.
template <class Read>
auto read_json(std::string_view text, std::string file, Read&& read)
    -> Result<std::invoke_result_t<Read, JsonValue>> {
  try {
    const JsonDocument document(text, std::move(file));
    return read(JsonValue(document));
  } catch (JsonFailure& failure) {
    return std::move(failure.error);
  }
}

} // namespace piper::compiler
