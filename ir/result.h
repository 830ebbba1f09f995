// Result and Error: failures are values that say what was wrong, where, and how to mend it.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace piper {

enum class ErrorKind {
  User,        ///< the caller's input: a directive, a flag, a file, a model
  Internal,    ///< a defect of the compiler or the runtime: a verifier or an invariant failed
  DeviceLost,  ///< a process or device went away
  Timeout,     ///< a wait passed its deadline
  PeerAborted, ///< another device failed first and told us
  OutOfMemory, ///< a device's memory cap, or the machine's memory
  Cancelled,   ///< the caller asked to stop
};

/// "User", "Timeout", …; parses back with `parse_error_kind`.
const char* to_string(ErrorKind kind);
std::optional<ErrorKind> parse_error_kind(std::string_view text);

struct Error {
  ErrorKind kind = ErrorKind::Internal;
  std::string message; ///< what was wrong, one sentence
  std::string where;   ///< directive, file and line, device, instruction; empty if it has no place
  std::string hint;    ///< how to mend it; empty if nothing helps

  /// "where: message\n  hint", leaving out what is empty.
  std::string to_string() const;
  bool operator==(const Error&) const = default;
};

inline Error user_error(std::string message, std::string where = {}, std::string hint = {}) {
  return {ErrorKind::User, std::move(message), std::move(where), std::move(hint)};
}
inline Error internal_error(std::string message, std::string where = {}) {
  return {ErrorKind::Internal, std::move(message), std::move(where),
          "this is a defect of piper: please report it with the strategy that led here"};
}

/// Thrown only by `Result::value_or_throw`, for callers that prefer exceptions.
class ErrorException : public std::runtime_error {
public:
  explicit ErrorException(Error error)
      : std::runtime_error(error.to_string()), error_(std::move(error)) {}
  const Error& error() const { return error_; }

private:
  Error error_;
};

/// Either a T or an Error. `Result<void>` holds no value.
template <class T> class [[nodiscard]] Result {
public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }
  T value_or_throw() && {
    if (!ok())
      throw ErrorException(std::get<1>(std::move(state_)));
    return std::get<0>(std::move(state_));
  }

private:
  std::variant<T, Error> state_;
};

template <> class [[nodiscard]] Result<void> {
public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }
  void value_or_throw() const {
    if (error_)
      throw ErrorException(*error_);
  }

private:
  std::optional<Error> error_;
};

/// Binds `decl` to the value of `expr`, or returns its error from the enclosing function.
#define PIPER_TRY(decl, expr) PIPER_TRY_IMPL(decl, expr, PIPER_CONCAT(piper_try_, __LINE__))
/// Returns the error of `expr` (a Result<void>) from the enclosing function.
#define PIPER_CHECK_OK(expr)                                                                       \
  do {                                                                                             \
    if (auto piper_result = (expr); !piper_result.ok())                                            \
      return std::move(piper_result).error();                                                      \
  } while (false)
#define PIPER_CONCAT_IMPL(a, b) a##b
#define PIPER_CONCAT(a, b) PIPER_CONCAT_IMPL(a, b)
#define PIPER_TRY_IMPL(decl, expr, name)                                                           \
  auto name = (expr);                                                                              \
  if (!name.ok())                                                                                  \
    return std::move(name).error();                                                                \
  decl = *std::move(name)

} // namespace piper
