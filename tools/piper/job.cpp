#include "tools/piper/job.h"

#include "compiler/compile.h"
#include "compiler/passes/expand_schedules.h"
#include "compiler/strategies/schedule_table.h"
#include "tools/piper/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace piper::cli {

namespace {

/// "d-model" -> "d_model": flags use dashes, configurations underscores.
std::string key_of(std::string flag) {
  std::replace(flag.begin(), flag.end(), '-', '_');
  return flag;
}

Result<nlohmann::json> read_json_object(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    return user_error(fmt::format("cannot read the configuration {}", path), "--config",
                      "give a file that holds one JSON object");
  try {
    auto json = nlohmann::json::parse(file);
    if (!json.is_object())
      return user_error("the configuration is no JSON object", path);
    return json;
  } catch (const nlohmann::json::exception& error) {
    return user_error(fmt::format("malformed JSON: {}", error.what()), path);
  }
}

/// What CLI11 would have seen on the command line.
std::vector<std::string> as_arguments(const nlohmann::json& value) {
  std::vector<std::string> arguments;
  if (value.is_array())
    for (const auto& element : value)
      arguments.push_back(element.is_string() ? element.get<std::string>() : element.dump());
  else
    arguments.push_back(value.is_string() ? value.get<std::string>() : value.dump());
  return arguments;
}

/// A pipeline schedule as PyTorch writes it.
Result<ir::Strategy> read_csv(const std::string& path, int64_t microbatches) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  PIPER_TRY(const auto table, compiler::ScheduleTable::parse_csv(content.str(), path));
  if (auto checked = table.check(); !checked.ok()) {
    Error error = std::move(checked).error();
    error.where = error.where.empty() ? path : fmt::format("{}, {}", path, error.where);
    return error;
  }
  ir::Schedule schedule{.expression = "table", .microbatches = microbatches};
  std::istringstream rows(table.to_csv());
  for (std::string row; std::getline(rows, row);)
    schedule.table.push_back(row);
  ir::Strategy strategy;
  strategy.name = path;
  strategy.add(std::move(schedule), {path, 0});
  return strategy;
}

} // namespace

void Job::add_model_flags(CLI::App& verb) {
  // So that a script's flags can be followed by a user's.
  verb.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto number = [&](const std::string& flag, const std::string& help) {
    verb.add_option_function<int64_t>(
            "--" + flag, [this, key = key_of(flag)](const int64_t& value) { config_[key] = value; },
            help)
        ->group("Model");
  };
  const auto real = [&](const std::string& flag, const std::string& help) {
    verb.add_option_function<double>(
            "--" + flag, [this, key = key_of(flag)](const double& value) { config_[key] = value; },
            help)
        ->group("Model");
  };
  const auto text = [&](const std::string& flag, const std::string& help) {
    return verb
        .add_option_function<std::string>(
            "--" + flag,
            [this, key = key_of(flag)](const std::string& value) { config_[key] = value; }, help)
        ->group("Model");
  };
  verb.add_option("--model", model_name,
                  "Name of the model, or a TorchScript FILE.pt that FILE.json describes")
      ->group("Model")
      ->capture_default_str();
  const auto flag = [&](const std::string& name, const std::string& help) {
    verb.add_flag_callback(
            "--" + name, [this, name] { config_[name] = true; }, help)
        ->group("Model");
  };
  number("layers", "Layers");
  number("batch", "Samples of one iteration over all devices");
  number("d-model", "gpt, llama, moe: width");
  number("heads", "gpt, llama, moe: attention heads");
  number("kv-heads", "llama, moe: heads of keys and values");
  number("d-ff", "llama, moe: units of the gated layer, or of an expert");
  number("experts", "moe: experts of a layer");
  number("top-k", "moe: experts of a token");
  number("seq", "gpt, llama, moe: tokens of a sample");
  number("vocab", "gpt, llama, moe: different tokens");
  flag("tied", "gpt, llama: one matrix for embedding and head");
  real("rope-theta", "llama, moe: base of the rotary positions");
  real("norm-eps", "llama, moe: added to the mean square");
  real("balance-weight", "moe: of the load-balancing loss");
  number("d-in", "mlp: width of the input");
  number("d-hidden", "mlp: width of the layers");
  number("d-out", "mlp: width of the output");
  flag("skip", "mlp: connections that jump over two layers");
  text("data", "gpt, llama, moe: text to train on (default: the licenses that every Debian has)");
  text("dtype", "float32 or float64")->check(CLI::IsMember({"float32", "float64"}));
  verb.add_option_function<uint64_t>(
          "--seed",
          [this](const uint64_t& value) {
            seed_ = value;
            config_["seed"] = value;
          },
          "Of weights and samples (default: 1)")
      ->group("Model");
  verb.add_option("--config", config_file_,
                  "JSON object with these flags as keys, and with the model's own")
      ->group("Model");
}

void Job::add_strategy_flags(CLI::App& verb) {
  verb.add_option("--strategy", strategy_,
                  "JSON file, PyTorch's schedule CSV, or names of builders: single, dp:2, "
                  "interleaved:4,v=3, dp:2x1f1b:2")
      ->group("Strategy");
  verb.add_option("--microbatches", microbatches_,
                  "Of the whole batch, for named builders; also cuts a text's samples into parts")
      ->check(CLI::PositiveNumber)
      ->group("Strategy");
  verb.add_option(
          "--balance", balance_file_,
          "Cost file of piper profile: the stages of named builders are to take alike by it "
          "(default: by declared FLOPs)")
      ->group("Strategy");
  verb.add_option("--devices", devices, "Devices of the job (default: those the strategy names)")
      ->check(CLI::PositiveNumber)
      ->group("Strategy");
}

void Job::add_session_flags(CLI::App& verb) {
  auto& o = session_.optimizer;
  const auto option = [&](const std::string& flag, auto& target, const std::string& help) {
    return verb.add_option(flag, target, help)->capture_default_str()->group("Training");
  };
  option("--optimizer", optimizer_, "adamw or sgd")->check(CLI::IsMember({"adamw", "sgd"}));
  option("--lr", o.lr, "Learning rate");
  option("--beta1", o.beta1, "AdamW");
  option("--beta2", o.beta2, "AdamW");
  option("--eps", o.eps, "AdamW");
  option("--weight-decay", o.weight_decay, "Decoupled for AdamW");
  option("--momentum", o.momentum, "SGD");
  option("--clip-norm", o.clip_norm, "Limit of the global gradient norm; 0: none");
  option("--warmup", o.warmup, "Iterations of linear warm-up");
  option("--decay", o.decay, "Iteration at which the cosine ends; 0: constant");
  option("--min-lr", o.min_lr, "Where the cosine ends");
  option("--eval-every", session_.eval_every, "Iterations between evaluations; 0: none");
  option("--eval-batches", session_.eval_batches, "Held-out batches of an evaluation");

  const auto runtime = [&](CLI::Option* added) { added->group("Runtime"); };
  runtime(verb.add_option("--processes", processes, "Processes that share the devices")
              ->check(CLI::PositiveNumber));
  runtime(verb.add_option("--workers", session_.workers,
                          "Further processes that join by hand: piper worker --join HOST:PORT")
              ->check(CLI::NonNegativeNumber));
  runtime(verb.add_option("--listen", session_.listen, "HOST:PORT where workers join; port 0: any")
              ->capture_default_str());
  runtime(verb.add_option("--threads-per-device", session_.threads_per_device,
                          "Intra-op threads of a device")
              ->check(CLI::PositiveNumber)
              ->capture_default_str());
  runtime(verb.add_option("--memory-cap", session_.memory_cap,
                          "Bytes a device may hold, also as 2GiB; 0: no cap")
              ->transform(CLI::AsSizeValue(false)));
  runtime(verb.add_option("--offload-dir", session_.offload_directory,
                          "Where the files are that offloaded tensors go to"));
  runtime(verb.add_option("--transport", transport_, "auto, loopback, shm or tcp")
              ->check(CLI::IsMember({"auto", "loopback", "shm", "tcp"}))
              ->capture_default_str());
  runtime(verb.add_option("--link", link_,
                          "LATENCY,BANDWIDTH of a slow link before every device: 50us,1GB/s"));
  runtime(verb.add_option("--deadline", deadline_seconds_, "Seconds that any wait may take")
              ->check(CLI::PositiveNumber)
              ->capture_default_str());
}

void Job::anchor_data(const std::filesystem::path& folder) {
  if (config_.contains("data") && config_["data"] != "random")
    config_["data"] =
        std::filesystem::absolute(folder / config_["data"].get<std::string>()).string();
}

Result<void> Job::read_config(CLI::App& verb) {
  const bool is_file = model_name.ends_with(".pt");
  if (is_file) {
    // Paths that workers understand too.
    const std::filesystem::path file = std::filesystem::absolute(model_name);
    config_["file"] = file.string();
    if (config_file_.empty())
      config_file_ = std::filesystem::path(file).replace_extension(".json").string();
    model_name = "torchscript";
    anchor_data("");
  }
  if (!config_file_.empty()) {
    PIPER_TRY(const auto json, read_json_object(config_file_));
    for (const auto& [key, value] : json.items()) {
      std::string flag = key;
      std::replace(flag.begin(), flag.end(), '_', '-');
      CLI::Option* option = verb.get_option_no_throw("--" + flag);
      if (!option) {
        config_[key_of(key)] = value;
      } else if (option->count() == 0 && value != false) {
        try {
          option->add_result(as_arguments(value));
          option->run_callback();
        } catch (const CLI::Error& error) {
          return user_error(fmt::format("\"{}\": {}", key, error.what()), config_file_);
        }
      }
    }
  }
  if (is_file)
    anchor_data(std::filesystem::path(config_file_).parent_path());
  if (model_name == "gpt" || model_name == "llama" || model_name == "moe" || is_file) {
    // The same parts as PyTorch users' microbatches, whatever the strategy cuts the batch into.
    if (microbatches_ > 0 && !config_.contains("sample_microbatches"))
      config_["sample_microbatches"] = microbatches_;
    if (session_.eval_every > 0)
      config_["holdout"] = true;
  }
  return {};
}

Result<Model> Job::build_model(const Registry& registry) const {
  return registry.build(model_name, model_config());
}

Result<ir::Strategy> read_strategy(const std::string& text, int64_t microbatches,
                                   const std::string& flag) {
  if (text.empty())
    return user_error("no strategy is given", flag,
                      "give a JSON or CSV file or a name such as single, dp:2 or 1f1b:4");
  const std::filesystem::path path(text);
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored))
    return path.extension() == ".csv" ? read_csv(text, microbatches) : ir::Strategy::load(text);
  if (path.has_parent_path() || path.extension() == ".json" || path.extension() == ".csv")
    return user_error(fmt::format("there is no file {}", text), flag);
  ir::Strategy strategy;
  strategy.name = text;
  strategy.schedule(text, microbatches);
  return strategy;
}

Result<ir::Strategy> Job::balance(const Model& model, ir::Strategy strategy) const {
  if (balance_file_.empty())
    return strategy;
  PIPER_TRY(const std::string text, read_file(balance_file_, "--balance"));
  PIPER_TRY(const auto costs, compiler::CostModel::parse(text, *model.spec, balance_file_));
  return compiler::expand_schedules(*model.spec, strategy, &costs);
}

Result<void> Job::settle_devices(const Model& model, const std::vector<ir::Strategy>& strategies) {
  uint32_t named = 1;
  for (const auto& strategy : strategies) {
    compiler::CompileOptions options;
    options.devices = devices;
    PIPER_TRY(const auto compiled, compiler::compile(model.spec, strategy, options));
    if (!compiled.plans.devices.empty())
      named = std::max(named, compiled.plans.devices.rbegin()->first + 1);
  }
  if (devices == 0)
    devices = named;
  return {};
}

Result<SessionOptions> Job::session_options() const {
  SessionOptions options = session_;
  options.devices = devices;
  options.seed = seed_;
  options.model_name = model_name;
  options.model_config = model_config();
  options.optimizer.kind = optimizer_ == "sgd" ? executor::OptimizerSpec::Kind::Sgd
                                               : executor::OptimizerSpec::Kind::AdamW;
  options.transport = transport_ == "loopback" ? TransportKind::Loopback
                      : transport_ == "shm"    ? TransportKind::UcxSharedMemory
                      : transport_ == "tcp"    ? TransportKind::UcxTcp
                                               : TransportKind::Auto;
  if (!link_.empty()) {
    auto link = transport::parse_link(link_);
    if (!link.ok())
      return user_error(link.error().message, "--link", link.error().hint);
    options.link = *link;
  }
  options.deadline = std::chrono::milliseconds(static_cast<int64_t>(deadline_seconds_ * 1000));
  if (processes + session_.workers > devices)
    return user_error(
        fmt::format("{} processes cannot share {} devices", processes + session_.workers, devices),
        "--processes", "give at most one process a device");
  return options;
}

} // namespace piper::cli
