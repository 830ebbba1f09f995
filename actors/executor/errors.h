// Exceptions of LibTorch, of modules and of data sources as Error values.
#pragma once

#include "actors/executor/memory.h"
#include "ir/result.h"

namespace piper::executor {

/// The exception in flight, in a catch block. OutOfMemory names the account's largest holders;
/// everything else is the user's model or data, so a User error.
Error error_in_flight(std::string where, const MemoryAccount& account);

} // namespace piper::executor
