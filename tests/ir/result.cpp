#include "ir/result.h"

#include <catch2/catch.hpp>

using namespace piper;

namespace {
Result<int> half(int n) {
  if (n % 2)
    return user_error("odd", "half", "give an even number");
  return n / 2;
}
Result<int> quarter(int n) {
  PIPER_TRY(int h, half(n));
  return half(h);
}
Result<void> must_halve(int n) {
  PIPER_CHECK_OK(half(n));
  return {};
}
} // namespace

TEST_CASE("an error prints where, what and how to mend it") {
  CHECK(user_error("odd", "half", "give an even number").to_string() ==
        "half: odd\n  give an even number");
  CHECK(user_error("odd").to_string() == "odd");
  CHECK(internal_error("bad").hint.find("defect of piper") != std::string::npos);
}

TEST_CASE("kinds of errors parse back") {
  for (ErrorKind kind :
       {ErrorKind::User, ErrorKind::Internal, ErrorKind::DeviceLost, ErrorKind::Timeout,
        ErrorKind::PeerAborted, ErrorKind::OutOfMemory, ErrorKind::Cancelled})
    CHECK(parse_error_kind(to_string(kind)) == kind);
  CHECK(!parse_error_kind("Other"));
}

TEST_CASE("errors flow through PIPER_TRY and PIPER_CHECK_OK") {
  CHECK(*quarter(8) == 2);
  CHECK(quarter(6).error() == half(3).error());
  CHECK(must_halve(2).ok());
  CHECK(must_halve(3).error().message == "odd");
}

TEST_CASE("value_or_throw throws the error") {
  CHECK(half(4).value_or_throw() == 2);
  try {
    (void)half(3).value_or_throw();
    FAIL("did not throw");
  } catch (const ErrorException& e) {
    CHECK(e.error().message == "odd");
    CHECK(std::string(e.what()) == e.error().to_string());
  }
  CHECK_THROWS_AS(must_halve(1).value_or_throw(), ErrorException);
}
