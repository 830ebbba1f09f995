#include "actors/compile_epoch.h"

#include "actors/plan_fragments.h"
#include "compiler/compile.h"
#include "compiler/simulate/ablate.h"

#include <chrono>
#include <optional>

namespace piper::actors {
namespace {

std::vector<std::pair<uint32_t, DeviceIndex>> first_holders(const ir::PlanSet& plans) {
  std::map<uint32_t, DeviceIndex> first;
  for (const ir::Bucket& bucket : plans.buckets)
    for (DeviceIndex device : plans.groups[bucket.group.value].devices)
      for (ir::ParamId param : bucket.params) {
        auto [at, is_new] = first.try_emplace(param.value, device);
        at->second = std::min(at->second, device);
      }
  return {first.begin(), first.end()};
}

/// Adds the plans' fragments for every device. Devices of one role share them.
void add_fragments(const ir::PlanSet& plans, CompileReport& report,
                   std::set<ir::Fingerprint>& known) {
  std::map<ir::RoleId, Manifest> of_role;
  for (DeviceIndex device = 0; device < report.plans.size(); ++device) {
    ir::RoleId role = plans.role_of(device);
    auto [at, is_new] = of_role.try_emplace(role);
    if (is_new)
      for (PlanFragment& fragment : cut(only_role(plans, role).to_text())) {
        at->second.push_back(fragment.id);
        if (known.insert(fragment.id).second)
          report.fragments.push_back(std::move(fragment));
      }
    report.plans[device].push_back(at->second);
  }
}

Result<ir::PlanSet> compile_plans(std::shared_ptr<const ir::ModelSpec> model,
                                  const StrategyText& text, Epoch epoch, const ir::PlanSet* from,
                                  const CompileTarget& target, CompileReport& report) {
  PIPER_TRY(ir::Strategy strategy, text.parse());
  compiler::CompileOptions options;
  options.epoch = epoch;
  options.devices = target.devices;
  options.kind = ir::PlanKind::Train;
  options.memory_cap = target.memory_cap;
  options.optimizer = target.kinds;
  PIPER_TRY(compiler::Compiled train, compiler::compile(model, strategy, options));
  options.kind = ir::PlanKind::Eval;
  PIPER_TRY(compiler::Compiled eval, compiler::compile(model, strategy, options));
  if (!target.overlap)
    for (ir::PlanSet* plans : {&train.plans, &eval.plans})
      *plans = compiler::without_overlap(std::move(*plans));
  std::set<ir::Fingerprint> known;
  add_fragments(train.plans, report, known);
  add_fragments(eval.plans, report, known);
  if (from) {
    PIPER_TRY(ir::PlanSet migration,
              compiler::compile_migration(*from, train.plans, *model, target.kinds));
    add_fragments(migration, report, known);
  }
  report.summary.strategy = text.name;
  report.summary.epoch = epoch;
  for (const auto& [device, role] : train.plans.devices)
    report.summary.roles[device] = train.plans.roles[role.value].name;
  report.summary.loss_order = train.plans.loss_order();
  report.summary.owners = first_holders(train.plans);
  return std::move(train.plans);
}

} // namespace

CompiledEpoch compile_epoch(std::shared_ptr<const ir::ModelSpec> model,
                            const StrategyText& strategy, Epoch epoch, const ir::PlanSet* from,
                            const CompileTarget& target) {
  const auto begun = std::chrono::steady_clock::now();
  CompiledEpoch compiled;
  compiled.report.epoch = epoch;
  compiled.report.plans.resize(target.devices);
  auto train = compile_plans(std::move(model), strategy, epoch, from, target, compiled.report);
  if (train.ok()) {
    compiled.train = *std::move(train);
  } else {
    compiled.report.ok = false;
    compiled.report.error = train.error();
  }
  compiled.report.summary.compile_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return compiled;
}

} // namespace piper::actors
