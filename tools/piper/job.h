// The flags that say what to train and how: model, strategy, session. One set for all verbs.
#pragma once

#include "actors/session.h"
#include "ir/strategy.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace piper::cli {

/// The strategy of a JSON file, of a schedule in PyTorch's CSV, or of an expression such as
/// "dp:2x1f1b:2" with its microbatches (0: the builder's choice); `flag` is where it was given.
Result<ir::Strategy> read_strategy(const std::string& text, int64_t microbatches,
                                   const std::string& flag);

/// A job as the command line and `--config` describe it.
class Job {
public:
  /// Declares the flags on a verb. The job must outlive the parse.
  void add_model_flags(CLI::App& verb);
  void add_strategy_flags(CLI::App& verb);
  void add_session_flags(CLI::App& verb);

  /// After the parse: reads `--config`, whose keys are the flags' names (with - or _); flags on the
  /// command line win, and what is no flag goes to the model. A model that is a file is
  /// "torchscript", with the configuration beside it unless there is another.
  Result<void> read_config(CLI::App& verb);
  /// Sets a key of the model's configuration, whatever the flags say.
  void set_model_key(const std::string& key, nlohmann::json value) { config_[key] = value; }

  /// What the model's factory gets.
  std::string model_config() const { return config_.dump(); }
  Result<Model> build_model(const Registry& registry) const;
  /// `--strategy`.
  Result<ir::Strategy> strategy() const {
    return read_strategy(strategy_, microbatches_, "--strategy");
  }
  /// Another strategy for the same job, given at `flag`.
  Result<ir::Strategy> other_strategy(const std::string& text, const std::string& flag) const {
    return read_strategy(text, microbatches_, flag);
  }
  /// With the stages of its pipelines balanced by `--balance`; as it is without that flag.
  Result<ir::Strategy> balance(const Model& model, ir::Strategy strategy) const;
  /// Compiles each of the strategies, so that one that does not fit the model is told at once, and
  /// sets `devices` to what they need if the flags left it open.
  Result<void> settle_devices(const Model& model, const std::vector<ir::Strategy>& strategies);
  /// Of the flags; the workers of `processes` are not started yet.
  Result<SessionOptions> session_options() const;

  std::string model_name = "gpt";
  uint32_t devices = 0; ///< 0: as many as the strategies name
  uint32_t processes = 1;

private:
  /// Makes the path of the data, if there is one, absolute: a relative one starts at `folder`.
  void anchor_data(const std::filesystem::path& folder);

  nlohmann::json config_ = nlohmann::json::object();
  std::string config_file_;
  std::string strategy_, balance_file_;
  int64_t microbatches_ = 0;
  uint64_t seed_ = 1;
  std::string optimizer_ = "adamw", transport_ = "auto", link_;
  SessionOptions session_;
  double deadline_seconds_ = 60;
};

} // namespace piper::cli
