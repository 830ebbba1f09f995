#include "actors/executor/errors.h"

#include <c10/util/Exception.h>

namespace piper::executor {
namespace {

Error out_of_memory(std::string message, std::string where) {
  return {ErrorKind::OutOfMemory, std::move(message), std::move(where),
          "more microbatches, more devices or a higher cap"};
}

} // namespace

Error error_in_flight(std::string where) {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& e) {
    return out_of_memory(e.msg(), std::move(where));
  } catch (const std::bad_alloc&) {
    return out_of_memory("the machine has no memory left", std::move(where));
  } catch (const c10::Error& e) {
    return user_error(e.msg(), std::move(where));
  } catch (const std::exception& e) {
    return user_error(e.what(), std::move(where));
  } catch (...) {
    return user_error("an exception of unknown type", std::move(where));
  }
}

} // namespace piper::executor
