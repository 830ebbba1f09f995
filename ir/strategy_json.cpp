// The JSON spelling of strategies: writing.
#include "ir/strategy.h"

#include <nlohmann/json.hpp>

namespace piper::ir {

namespace {

using Json = nlohmann::ordered_json;

template <class... Cases> struct Overloaded : Cases... { using Cases::operator()...; };

Json json_of(const TagIndex& index) {
  return std::visit([](const auto& value) { return Json(value); }, index);
}

Json json_of(const TagMatch& match) {
  switch (match.kind) {
  case TagMatch::Kind::Any:
    return "*";
  case TagMatch::Kind::Absent:
    return nullptr;
  case TagMatch::Kind::OneOf:
    break;
  }
  if (match.indices.size() == 1)
    return json_of(match.indices[0]);
  Json list = Json::array();
  for (const TagIndex& index : match.indices)
    list.push_back(json_of(index));
  return list;
}

Json json_of(const Filter& filter) {
  Json out = Json::object();
  for (const auto& [tag, match] : filter.terms)
    out[tag] = json_of(match);
  return out;
}

/// What Shard and ShardTensor share.
template <class Sharding> void put_sharding(Json& out, const Sharding& d) {
  out["filter"] = json_of(d.filter);
  out["devices"] = d.devices;
  if (d.ways)
    out["ways"] = d.ways;
  if (!d.stream.empty())
    out["stream"] = d.stream;
}

/// The body after `op`, in the order in which a person would write it.
Json json_of(const DirectiveBody& body) {
  Json out = Json::object();
  std::visit(Overloaded{
                 [&](const Split& d) {
                   out["filter"] = json_of(d.filter);
                   out["dim_name"] = d.dim;
                   out["num_microbatches"] = d.count;
                 },
                 [&](const SplitBackward& d) { out["filter"] = json_of(d.filter); },
                 [&](const Place& d) {
                   out["filter"] = json_of(d.filter);
                   out["devices"] = d.devices;
                   if (!d.stream.empty())
                     out["stream"] = d.stream;
                 },
                 [&](const Replicate& d) {
                   out["filter"] = json_of(d.filter);
                   out["devices"] = d.devices;
                   if (d.shard_optimizer)
                     out["shard_optimizer"] = true;
                   if (d.shard_grads)
                     out["shard_grads"] = true;
                   if (d.shard_params)
                     out["shard_params"] = true;
                   if (d.shard_within != 0)
                     out["shard_within"] = d.shard_within;
                   if (d.bucket_mb != 0)
                     out["bucket_mb"] = d.bucket_mb;
                   if (!d.reduce_stream.empty())
                     out["reduce_stream"] = d.reduce_stream;
                   if (!d.gather_stream.empty())
                     out["gather_stream"] = d.gather_stream;
                 },
                 [&](const Order& d) {
                   Json groups = Json::array();
                   for (const auto& group : d.groups) {
                     Json list = Json::array();
                     for (const Filter& filter : group)
                       list.push_back(json_of(filter));
                     groups.push_back(std::move(list));
                   }
                   out["filters"] = std::move(groups);
                 },
                 [&](const Overlap& d) {
                   out["a"] = json_of(d.a);
                   out["b"] = json_of(d.b);
                 },
                 [&](const Fuse& d) {
                   out["filter"] = json_of(d.filter);
                   if (d.update)
                     out["update"] = true;
                 },
                 [&](const Recompute& d) { out["filter"] = json_of(d.filter); },
                 [&](const Offload& d) {
                   out["filter"] = json_of(d.filter);
                   Json what = Json::array();
                   for (const auto& [name, member] : kOffloaded)
                     if (d.*member)
                       what.push_back(name);
                   out["what"] = std::move(what);
                 },
                 [&](const Mirror& d) {
                   out["filter"] = json_of(d.filter);
                   out["copies"] = d.copies;
                 },
                 [&](const Prefetch& d) {
                   out["filter"] = json_of(d.filter);
                   out["distance"] = d.distance;
                 },
                 [&](const TagCalls& d) {
                   out["filter"] = json_of(d.filter);
                   out["name"] = d.name;
                   out["index"] = d.index;
                 },
                 [&](const Schedule& d) {
                   out["name"] = d.expression;
                   if (d.microbatches)
                     out["microbatches"] = d.microbatches;
                   if (!d.table.empty())
                     out["table"] = d.table;
                 },
                 [&](const Shard& d) { put_sharding(out, d); },
                 [&](const ShardTensor& d) {
                   put_sharding(out, d);
                   if (d.sequence)
                     out["sequence"] = true;
                 },
             },
             body);
  return out;
}

/// One line with a space after each `:` and `,`, as people write it.
void append_spaced(std::string& out, const Json& json) {
  const bool object = json.is_object();
  if (!object && !json.is_array()) {
    out += json.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  out += object ? '{' : '[';
  bool first = true;
  for (auto it = json.begin(); it != json.end(); ++it) {
    if (!first)
      out += ", ";
    first = false;
    if (object)
      out += Json(it.key()).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
    append_spaced(out, *it);
  }
  out += object ? '}' : ']';
}

} // namespace

std::string Filter::to_json() const {
  std::string out;
  append_spaced(out, json_of(*this));
  return out;
}

std::string Directive::to_json() const {
  Json json = Json::object();
  json["op"] = op();
  json.update(json_of(body));
  std::string out;
  append_spaced(out, json);
  return out;
}

std::string Strategy::to_json() const {
  std::string out = "[";
  for (size_t i = 0; i < directives.size(); ++i)
    out += (i ? ",\n  " : "\n  ") + directives[i].to_json();
  return out + (directives.empty() ? "]\n" : "\n]\n");
}

} // namespace piper::ir
