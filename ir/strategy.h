// Strategy: directives as plain data. The C++ builder below and the JSON file are two spellings of
// the same thing; JSON written for the original Piper (arXiv 2606.11169) is accepted unchanged.
#pragma once

#include "ir/ids.h"
#include "ir/result.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace piper::ir {

/// One index that a tag may have: a number (`layer`, `MB`, …) or a word (`PASS`, `call`).
using TagIndex = std::variant<int64_t, std::string>;

/// What a filter asks of one tag: any index, no such tag, or one of a list.
struct TagMatch {
  enum class Kind { Any, Absent, OneOf } kind = Kind::Any;
  std::vector<TagIndex> indices; ///< of OneOf, at least one

  static TagMatch any() { return {}; }
  bool operator==(const TagMatch&) const = default;
};

/// A conjunction of tag -> index. `{}` matches everything. Beside the model's annotations and those
/// that `tag` adds, every node has
///   PASS  F, B (or BI and BW after `split_backward`) for compute, REDUCE for what is done to a
///   bucket's gradients MB    the microbatch, under the name that `split` gives it call  the name
///   of the call
struct Filter {
  std::vector<std::pair<std::string, TagMatch>> terms; ///< sorted by tag, no tag twice

  Filter() = default;
  /// `Filter{{"layer", 2}, {"PASS", "B"}}`; "*" stands for any index.
  struct Term {
    std::string tag;
    TagMatch match;
    Term(std::string tag_, int64_t index);
    Term(std::string tag_, int index) : Term(std::move(tag_), static_cast<int64_t>(index)) {}
    Term(std::string tag_, const char* index);
    Term(std::string tag_, std::string index);
    Term(std::string tag_, std::vector<int64_t> indices);
    Term(std::string tag_, std::vector<std::string> indices);
  };
  Filter(std::initializer_list<Term> list);
  explicit Filter(std::vector<Term> list);
  void add(Term term); ///< replaces an earlier match of the same tag

  bool empty() const { return terms.empty(); }
  std::string to_json() const; ///< one line, `{"layer": 2, "MB": "*"}`
  bool operator==(const Filter&) const = default;
};

/// Cut the batch into `count` microbatches and call the tag that numbers them `dim`.
struct Split {
  Filter filter;
  std::string dim = "MB";
  int64_t count = 1;
  bool operator==(const Split&) const = default;
};
/// Where it runs. Several devices need a `replicate` over the same ones.
struct Place {
  Filter filter;
  std::vector<DeviceIndex> devices;
  std::string stream; ///< empty: the default compute stream
  bool operator==(const Place&) const = default;
};
/// Data parallel over `devices`; each takes an equal share of the rows of every microbatch.
struct Replicate {
  Filter filter;
  std::vector<DeviceIndex> devices;
  bool shard_optimizer = false; ///< ZeRO-1: each rank keeps and updates 1/n of every bucket
  bool shard_grads = false;     ///< ZeRO-2: also of the gradients; whole ones live for a moment
  bool shard_params = false;    ///< ZeRO-3: also of the parameters; gathered for each use
  /// Hybrid sharding: what is sharded is so within each `shard_within` replicas in a row, which
  /// keep the whole together, and replicated across these sub-groups. 0: over all replicas.
  int64_t shard_within = 0;
  double bucket_mb = 0; ///< gradients are reduced in buckets of about this size; 0: 25, or
                        ///< a segment's where gradients or parameters are sharded
  std::string reduce_stream;
  std::string gather_stream;
  bool operator==(const Replicate&) const = default;
};
/// Expert parallel over `devices`: each `ways` of them in a row hold all experts of the calls that
/// match, an equal share each, and work on each other's tokens; an all-to-all goes before and
/// after. Several such blocks are replicas, and need a `replicate` over the same devices.
struct Shard {
  Filter filter;
  std::vector<DeviceIndex> devices;
  uint32_t ways = 0;  ///< 0: all devices
  std::string stream; ///< of the all-to-alls
  bool operator==(const Shard&) const = default;
};
/// Tensor parallel over `devices`: each `ways` of them in a row work on the same rows. Calls that
/// say how their parameters are cut run on a piece of them each, and their results are summed;
/// other calls run alike on all. With `sequence`, those that work token by token run on a piece of
/// the tokens each, and the sums are scattered.
struct ShardTensor {
  Filter filter;
  std::vector<DeviceIndex> devices;
  uint32_t ways = 0; ///< 0: all devices
  bool sequence = false;
  std::string stream; ///< of the collectives between the calls
  bool operator==(const ShardTensor&) const = default;
};
/// The gradients of inputs and those of weights become two nodes, with PASS BI and BW in place of
/// B: what waits for the former does not wait for the latter. Neither repeats the other's work.
struct SplitBackward {
  Filter filter;
  bool operator==(const SplitBackward&) const = default;
};
/// On every device: all that matches group i before all that matches group i+1. The filters of one
/// group may interleave.
struct Order {
  std::vector<std::vector<Filter>> groups;
  bool operator==(const Order&) const = default;
};
/// Run what matches `a` and what matches `b` side by side, on streams of their own.
struct Overlap {
  Filter a, b;
  bool operator==(const Overlap&) const = default;
};
/// Dispatch what matches as one: neighbouring calls of one pass and microbatch on a device become
/// one instruction; with PASS = REDUCE the buckets that match become one bucket.
struct Fuse {
  Filter filter;
  /// Instead: the update of each bucket that matches is fused into its reduction, and runs as soon
  /// as its gradients are there. The iteration is then no longer kept as a whole or not at all.
  bool update = false;
  bool operator==(const Fuse&) const = default;
};
/// Keep no activations of the calls that match, only what goes into them: their forward runs again
/// right before their backward (arXiv 1604.06174). Calls fused into one instruction keep what goes
/// into the first of them.
struct Recompute {
  Filter filter;
  bool operator==(const Recompute&) const = default;
};
/// Keep in another memory what the calls that match need only now and then: what their forwards
/// keep for their backwards (arXiv 1602.08124), the optimizer's state of their parameters (arXiv
/// 2101.06840), the parameters themselves (arXiv 2104.07857).
struct Offload {
  Filter filter;
  bool activations = true, optimizer = false, params = false;
  bool operator==(const Offload&) const = default;
};
/// The words of the JSON form.
inline constexpr std::array<std::pair<const char*, bool Offload::*>, 3> kOffloaded = {
    {{"activations", &Offload::activations},
     {"optimizer", &Offload::optimizer},
     {"params", &Offload::params}}};
/// Keep `copies` more of what one device alone has of the parameters of calls that match, and of
/// their optimizer's state, on other devices.
struct Mirror {
  Filter filter;
  int64_t copies = 1;
  bool operator==(const Mirror&) const = default;
};
/// How early the parameters of calls that match may be gathered, where they are sharded, and what
/// they have offloaded fetched: while the `distance`-th such use before theirs begins. 0: when they
/// are needed.
struct Prefetch {
  Filter filter;
  int64_t distance = 1;
  bool operator==(const Prefetch&) const = default;
};
/// Annotate from the strategy: the calls that match get the tag `name` = `index`, which later
/// directives may filter by.
struct TagCalls {
  Filter filter;
  std::string name;
  int64_t index = 0;
  bool operator==(const TagCalls&) const = default;
};
/// A named builder with its arguments ("1f1b:4", "dp:2x1f1b:2"), expanded to the directives above
/// before anything is compiled.
struct Schedule {
  std::string expression;
  int64_t microbatches = 0; ///< of the global batch; 0: as many as the builder thinks best
  /// What "table" in the expression stands for: a pipeline schedule as rows of PyTorch's CSV, one a
  /// rank ("0F0,0F1,0B0,0B1").
  std::vector<std::string> table;
  bool operator==(const Schedule&) const = default;
};

using DirectiveBody =
    std::variant<Split, SplitBackward, Place, Replicate, Order, Overlap, Fuse, Recompute, Prefetch,
                 TagCalls, Schedule, Shard, ShardTensor, Offload, Mirror>;

/// Where a directive was written.
struct Origin {
  std::string file;              ///< empty: made by a program
  int line = 0;                  ///< 1-based line of its opening brace; 0: unknown
  std::string to_string() const; ///< "pipeline.json:7", "line 7", or empty
  bool operator==(const Origin&) const = default;
};

struct Directive {
  DirectiveBody body;
  Origin origin;
  const char* op() const;      ///< "split", "place", …
  std::string to_json() const; ///< one line
  /// Equal if they say the same, wherever they were written.
  bool operator==(const Directive& other) const { return body == other.body; }
};

struct Strategy {
  std::string name; ///< for people: the file's or the builder's name
  std::vector<Directive> directives;

  // The builder. Each returns *this, so that a strategy reads as a list.
  Strategy& split(Filter filter, int64_t count, std::string dim = "MB");
  Strategy& split_backward(Filter filter);
  Strategy& place(Filter filter, std::vector<DeviceIndex> devices, std::string stream = {});
  Strategy& replicate(Filter filter, std::vector<DeviceIndex> devices);
  Strategy& replicate(Replicate directive);
  Strategy& shard(Filter filter, std::vector<DeviceIndex> devices, uint32_t ways = 0);
  Strategy& shard_tensor(Filter filter, std::vector<DeviceIndex> devices, uint32_t ways = 0,
                         bool sequence = false);
  Strategy& order(std::vector<std::vector<Filter>> groups);
  Strategy& overlap(Filter a, Filter b);
  Strategy& fuse(Filter filter, bool update = false);
  Strategy& recompute(Filter filter);
  Strategy& offload(Offload directive);
  Strategy& mirror(Filter filter, int64_t copies = 1);
  Strategy& prefetch(Filter filter, int64_t distance);
  Strategy& tag(Filter filter, std::string name, int64_t index);
  Strategy& schedule(std::string expression, int64_t microbatches = 0);
  Strategy& add(DirectiveBody body, Origin origin = {});

  /// "directive 3 (order), pipeline.json:7" — the `where` of an error.
  std::string describe(size_t directive) const;
  static std::string describe(size_t directive, std::string_view op, const Origin& origin);

  /// The JSON list, a directive a line; parses back to an equal strategy.
  std::string to_json() const;
  /// `file` is used in errors and as the name. Errors: malformed JSON (with line and column), an
  /// unknown op or key, a wrong type.
  static Result<Strategy> parse(std::string_view json, const std::string& file = {});
  static Result<Strategy> load(const std::string& path);
  bool operator==(const Strategy& other) const { return directives == other.directives; }
};

} // namespace piper::ir
