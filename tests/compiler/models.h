// Small models for the compiler's tests, kept as text in tests/compiler/models.
#pragma once

#include "compiler/compile.h"

#include <memory>
#include <string>

namespace piper::test {

std::string read_file(const std::string& path);

/// tests/compiler/models/NAME.model; fails the test if it does not parse.
std::shared_ptr<const ir::ModelSpec> load_model(const std::string& name);

/// `calls` linear layers annotated layer = 0, 1, …, then a loss; 8 features.
std::shared_ptr<const ir::ModelSpec> chain(int calls, int64_t batch);

/// Compiles with the verifier after every pass; fails the test on an error.
compiler::Compiled compile_ok(std::shared_ptr<const ir::ModelSpec> model,
                              const ir::Strategy& strategy, compiler::CompileOptions options = {});

} // namespace piper::test
