#include "compiler/frontend/model.h"

#include "compiler/frontend/build.h"
#include "ir/fingerprint.h"

#include <torch/torch.h>

#include <mutex>
#include <stdexcept>

namespace piper {

namespace {

/// Module constructors draw from LibTorch's one default generator: while this lives it is seeded
/// for one module, nobody else builds, and afterwards its owner finds it as it was.
class SeededGenerator {
public:
  explicit SeededGenerator(uint64_t seed)
      : lock_(mutex()), generator_(at::detail::getDefaultCPUGenerator()) {
    std::lock_guard guard(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~SeededGenerator() {
    std::lock_guard guard(generator_.mutex());
    generator_.set_state(state_);
  }
  SeededGenerator(const SeededGenerator&) = delete;
  SeededGenerator& operator=(const SeededGenerator&) = delete;

private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  std::lock_guard<std::mutex> lock_;
  at::Generator generator_;
  at::Tensor state_;
};

/// The first of all modules' own parameters that stands for the logical one.
struct Holder {
  uint32_t module;
  const std::string* own_name;
};

Holder first_holder(const std::vector<ModuleFactory>& modules, ir::ParamId id) {
  for (uint32_t m = 0; m < modules.size(); ++m)
    for (const auto& [own_name, param] : modules[m].params)
      if (param == id)
        return {m, &own_name};
  throw std::logic_error("a parameter that no module holds");
}

} // namespace

BuiltModule build_seeded(const ModuleFactory& factory, uint64_t seed) {
  SeededGenerator seeded(ir::Hasher().add(seed).add(factory.name).finish().low);
  return factory.make();
}

BuiltModule Model::build_part(uint32_t index, uint64_t seed, Piece piece) const {
  const ModuleFactory& factory = modules.at(index);
  SeededGenerator seeded(ir::Hasher().add(seed).add(factory.name).finish().low);
  return factory.make_part(piece);
}

BuiltModule Model::build(uint32_t index, uint64_t seed) const {
  const ModuleFactory& factory = modules.at(index);
  BuiltModule built = build_seeded(factory, seed);
  if (!built.module)
    return built;

  at::NoGradGuard no_grad;
  auto own = built.module->named_parameters();
  for (const auto& [own_name, id] : factory.params) {
    at::Tensor tensor = own[own_name];
    if (initializer && initializer(spec->param(id).name, tensor, seed))
      continue;
    // Constructors gave the holders of a shared parameter different values: the first one's count,
    // wherever it is placed.
    Holder first = first_holder(modules, id);
    if (first.module != index)
      tensor.copy_(
          build_seeded(modules[first.module], seed).module->named_parameters()[*first.own_name]);
    else if (*first.own_name != own_name)
      tensor.copy_(own[*first.own_name]);
  }
  return built;
}

} // namespace piper
