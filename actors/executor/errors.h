// Exceptions of LibTorch, of modules and of data sources as Error values.
#pragma once

#include "ir/result.h"

#include <string>

namespace piper::executor {

/// The exception in flight, in a catch block: OutOfMemory, or a User error, as only the user's
/// model and data source throw anything else.
Error error_in_flight(std::string where);

} // namespace piper::executor
