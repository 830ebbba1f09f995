// Internal to ir/: how ids, values and nodes are named in texts and errors.
#pragma once

#include "ir/graph.h"
#include "ir/text.h"

#include <string>
#include <vector>

namespace piper::ir::text {

/// Names of what ids stand for. With a null model, ids are written as numbers: v3, c4, b0.
/// An id that is out of range is written ?7, and reads back as 7.
struct Names {
  const ModelSpec* model = nullptr;
  const std::vector<Bucket>* buckets = nullptr;

  void append_value(std::string& out, uint32_t id) const;
  void append_call(std::string& out, uint32_t id) const;
  void append_bucket(std::string& out, uint32_t id) const;
};

/// The inverse of Names; a null table reads numbers.
struct Lookup {
  const NameTable* values = nullptr;
  const NameTable* calls = nullptr;
  const NameTable* buckets = nullptr;

  uint32_t value(Reader& in) const;
  uint32_t call(Reader& in) const;
  uint32_t bucket(Reader& in) const;
};

/// What a value is, without its microbatch and place: "attn3", "d.attn3", "d.attn3[mlp3]",
/// "saved.attn3", "wgrad.attn3", "reduced.layer=3", "committed", "updated.layer=3".
void append_subject(std::string& out, const Names& names, ValueKind kind, uint32_t subject,
                    uint32_t part);
void read_subject(Reader& in, const Lookup& lookup, ValueKind& kind, uint32_t& subject,
                  uint32_t& part);

/// "attn3 @2 on g0"; leaves out the microbatch and the place where they are the expected ones.
void append_ref(std::string& out, const Names& names, const ValueRef& ref,
                int32_t expected_microbatch = kNoMicrobatch, GroupId expected_at = {});
ValueRef read_ref(Reader& in, const Lookup& lookup, int32_t expected_microbatch,
                  GroupId expected_at);

/// "F attn3 @2 on g0", "send d.attn3 @2 on g1 to g0"
void append_id(std::string& out, const Names& names, const NodeId& id);
NodeId read_id(Reader& in, const Lookup& lookup);

/// A letter and a number: "s3".
void append_numbered(std::string& out, char letter, uint32_t number);
uint32_t read_numbered(Reader& in, char letter, const char* what);

/// "g0", or "-" for none.
void append_group(std::string& out, GroupId group);
GroupId read_group(Reader& in);
/// "@2", or "@-" for none.
void append_microbatch(std::string& out, int32_t microbatch);
int32_t read_microbatch(Reader& in);

/// "# comment", in a column of its own beside the line that starts at `line_start`.
void append_comment(std::string& out, size_t line_start, std::string_view comment);

/// Lines "group g0 devices 0, 1 replicated" and "bucket layer=3 on g0 f32 numel 64" with one line
/// a parameter, whose names come from `model`; without it they are p0, p1, … and the names of
/// `comments`, where it is given, stand as comments.
void append_groups(std::string& out, const std::vector<Group>& groups);
void append_buckets(std::string& out, const std::vector<Bucket>& buckets, const ModelSpec* model,
                    const ModelSpec* comments = nullptr);
/// After the word `group`; `expected` is the number that it must have.
Group read_group_line(Reader& in, size_t expected);
/// After the word `bucket`.
Bucket read_bucket_line(Reader& in);
/// After the word `param`; a null table reads numbers.
void read_bucket_param(Reader& in, Bucket& bucket, const NameTable* params);

void append_devices(std::string& out, const std::vector<DeviceIndex>& devices);
std::vector<DeviceIndex> read_devices(Reader& in);

/// "[attn3 mlp3 | head]"
void append_chunks(std::string& out, const Names& names,
                   const std::vector<std::vector<CallId>>& chunks);
/// After the opening bracket.
std::vector<std::vector<CallId>> read_chunks(Reader& in, const Lookup& lookup);

} // namespace piper::ir::text
