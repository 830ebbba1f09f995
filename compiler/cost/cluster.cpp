#include "compiler/cost/cluster.h"

#include "compiler/cost/json_reader.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

namespace piper::compiler {

using ir::DeviceIndex;

namespace {

constexpr std::array kAlgorithms = {"direct", "ring", "halving", "hierarchical", "auto"};

Level read_level(const JsonValue& in) {
  in.allow_only({"name", "devices", "latency", "bandwidth", "uplink", "hands_over", "cores"});
  Level level;
  level.name = in["name"].string();
  level.devices = static_cast<uint32_t>(in.integer_or("devices", 0));
  level.latency = in.number_or("latency", 0);
  level.bandwidth = in.number_or("bandwidth", 0);
  level.uplink = in.number_or("uplink", 0);
  level.cores = in.number_or("cores", 0);
  if (in.has("hands_over"))
    level.hands_over = in["hands_over"].boolean();
  return level;
}

double read_speed(const JsonValue& in) {
  const double speed = in.number(0);
  if (speed == 0)
    in.fail("must be above 0");
  return speed;
}

Cluster read_cluster(const JsonValue& in) {
  in.allow_only({"levels", "speed", "speeds", "memory", "pool", "message", "collectives"});
  Cluster cluster;
  if (in.has("speed"))
    cluster.speed = read_speed(in["speed"]);
  if (in.has("speeds"))
    for (const auto& [device, speed] : in["speeds"].items()) {
      DeviceIndex index = 0;
      const auto [end, error] =
          std::from_chars(device.data(), device.data() + device.size(), index);
      if (error != std::errc() || end != device.data() + device.size())
        speed.fail("is no device: 0, 1, …");
      cluster.speeds[index] = read_speed(speed);
    }
  cluster.memory = in.integer_or("memory", 0);
  cluster.pool = in.number_or("pool", 0);
  cluster.message = in.number_or("message", 0);
  if (in.has("collectives")) {
    const JsonValue name = in["collectives"];
    const auto algorithm = parse_algorithm(name.string());
    if (!algorithm)
      name.fail(fmt::format("is no algorithm: \"{}\"", name.string()),
                "known: direct, ring, halving, hierarchical, auto");
    cluster.collectives = *algorithm;
  }
  const JsonValue levels = in["levels"];
  for (const JsonValue& each : levels.elements()) {
    const Level level = read_level(each);
    const uint32_t inner = cluster.levels.empty() ? 1 : cluster.levels.back().devices;
    if (inner == 0)
      each.fail("stands outside of a level that holds all devices",
                "list the levels from the innermost to the outermost");
    if (level.devices % inner != 0)
      each.fail(fmt::format("holds {} devices, no multiple of the {} of the level before",
                            level.devices, inner));
    cluster.levels.push_back(level);
  }
  if (cluster.levels.empty() || cluster.levels.back().devices != 0)
    levels.fail("has no level that holds all devices",
                "end with one that has no \"devices\", or 0");
  return cluster;
}

} // namespace

const char* to_string(Algorithm algorithm) {
  return kAlgorithms[static_cast<size_t>(algorithm)];
}

std::optional<Algorithm> parse_algorithm(std::string_view text) {
  for (size_t i = 0; i < kAlgorithms.size(); ++i)
    if (text == kAlgorithms[i])
      return static_cast<Algorithm>(i);
  return std::nullopt;
}

double Cluster::speed_of(DeviceIndex device) const {
  const auto found = speeds.find(device);
  return found == speeds.end() ? speed : found->second;
}

uint32_t Cluster::unit(size_t level, DeviceIndex device) const {
  return levels[level].devices == 0 ? 0 : device / levels[level].devices;
}

size_t Cluster::level_between(DeviceIndex a, DeviceIndex b) const {
  size_t level = 0;
  while (level + 1 < levels.size() && unit(level, a) != unit(level, b))
    ++level;
  return level;
}

std::string Cluster::to_json() const {
  using OrderedJson = nlohmann::ordered_json;
  OrderedJson json;
  json["speed"] = speed;
  if (!speeds.empty()) {
    OrderedJson& all = json["speeds"] = OrderedJson::object();
    for (const auto& [device, its] : speeds)
      all[std::to_string(device)] = its;
  }
  json["memory"] = memory;
  json["pool"] = pool;
  json["message"] = message;
  json["collectives"] = to_string(collectives);
  OrderedJson& list = json["levels"] = OrderedJson::array();
  for (const Level& level : levels)
    list.push_back({{"name", level.name},
                    {"devices", level.devices},
                    {"latency", level.latency},
                    {"bandwidth", level.bandwidth},
                    {"uplink", level.uplink},
                    {"hands_over", level.hands_over},
                    {"cores", level.cores}});
  return json.dump(1) + "\n";
}

Result<std::optional<Cluster>> Cluster::parse(std::string_view json, std::string file) {
  return read_json(json, std::move(file), [](const JsonValue& root) -> std::optional<Cluster> {
    if (!root.has("calls"))
      return read_cluster(root);
    if (!root.has("cluster"))
      return std::nullopt;
    return read_cluster(root["cluster"]);
  });
}

Cluster declared_cluster() {
  Cluster cluster;
  cluster.levels = {
      {.name = "node", .devices = 8, .latency = 3e-6, .bandwidth = 300e9},
      {.name = "cluster", .devices = 0, .latency = 10e-6, .bandwidth = 50e9},
  };
  cluster.pool = 50e9;
  cluster.message = 1e-6;
  cluster.collectives = Algorithm::Auto;
  return cluster;
}

} // namespace piper::compiler
