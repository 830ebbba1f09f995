// Whole strategies at random: directives put together as a person might, and sometimes wrongly.
#pragma once

#include "ir/model_spec.h"
#include "ir/result.h"
#include "ir/strategy.h"

#include <cstdint>
#include <random>

namespace piper::test {

/// For up to `devices` devices. Named schedules with options and products, or stages placed by hand
/// (by call or by tag, replicated or not, tensors, tokens, experts or state sharded or not, by
/// microbatch), with any of the other directives added on top; one in ten is spoilt on purpose.
/// What contradicts itself or the model is for the compiler to find out.
ir::Strategy compose(const ir::ModelSpec& model, uint32_t devices, std::mt19937_64& random);

/// Whether it is the user's to mend, says what is wrong, and names the directive, or that one is
/// missing.
bool is_reasoned(const Error& error);

} // namespace piper::test
