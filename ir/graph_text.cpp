// The text form of graphs: what comes before and after a pass, for people and golden files.
#include "ir/graph.h"
#include "ir/names.h"

#include <fmt/format.h>

#include <algorithm>

namespace piper::ir {

namespace {

using text::Lookup;
using text::Names;
using text::Reader;

bool has_default_chunks(const Node& node) {
  if (!is_compute(node.id.op))
    return node.chunks.empty();
  return node.chunks.size() == 1 && node.chunks[0].size() == 1 &&
         node.chunks[0][0].value == node.id.subject;
}

void append_refs(std::string& out, const Names& names, const Node& node,
                 const std::vector<ValueRef>& refs) {
  out += '(';
  for (size_t i = 0; i < refs.size(); ++i) {
    if (i)
      out += ", ";
    text::append_ref(out, names, refs[i], node.id.microbatch, node.id.at);
  }
  out += ')';
}

void append_node(std::string& out, const Names& names, const Node& node) {
  out += "  ";
  text::append_id(out, names, node.id);
  if (!has_default_chunks(node)) {
    out += " chunks ";
    text::append_chunks(out, names, node.chunks);
  }
  if (!node.inputs.empty()) {
    out += ' ';
    append_refs(out, names, node, node.inputs);
  }
  if (!node.outputs.empty()) {
    out += " -> ";
    append_refs(out, names, node, node.outputs);
  }
  if (node.scale != 1) {
    out += " scale ";
    text::append_double(out, node.scale);
  }
  if (!node.stream.empty()) {
    out += " stream ";
    text::append_name(out, node.stream);
  }
  if (node.directive != -1) {
    out += " by ";
    text::append_int(out, node.directive);
  }
  for (size_t i = 0; i < node.after.size(); ++i) {
    out += i ? ", " : " after ";
    text::append_id(out, names, node.after[i].before);
    if (node.after[i].directive != -1) {
      out += " by ";
      text::append_int(out, node.after[i].directive);
    }
  }
  out += '\n';
}

int32_t read_directive(Reader& in) {
  if (!in.accept("by"))
    return -1;
  return static_cast<int32_t>(in.integer("a directive"));
}

std::vector<ValueRef> read_refs(Reader& in, const Lookup& lookup, const NodeId& id) {
  std::vector<ValueRef> refs;
  if (in.accept(")"))
    return refs;
  do {
    refs.push_back(text::read_ref(in, lookup, id.microbatch, id.at));
  } while (in.accept(","));
  in.expect(")");
  return refs;
}

Node read_node(Reader& in, const Lookup& lookup) {
  Node node;
  node.id = text::read_id(in, lookup);
  if (in.accept("chunks")) {
    in.expect("[");
    node.chunks = text::read_chunks(in, lookup);
  } else if (is_compute(node.id.op)) {
    node.chunks = {{CallId(node.id.subject)}};
  }
  if (in.accept("("))
    node.inputs = read_refs(in, lookup, node.id);
  if (in.accept("->")) {
    in.expect("(");
    node.outputs = read_refs(in, lookup, node.id);
  }
  if (in.accept("scale"))
    node.scale = in.number("a scale");
  if (in.accept("stream"))
    node.stream = in.name("a stream");
  node.directive = read_directive(in);
  if (in.accept("after"))
    do {
      TemporalEdge& edge = node.after.emplace_back();
      edge.before = text::read_id(in, lookup);
      edge.directive = read_directive(in);
    } while (in.accept(","));
  in.end_line();
  return node;
}

template <class Item> text::NameTable table_of(const std::vector<Item>& items) {
  text::NameTable table;
  table.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i)
    table.emplace(items[i].name, static_cast<uint32_t>(i));
  return table;
}

class GraphReader {
public:
  GraphReader(Reader& in, std::shared_ptr<const ModelSpec> model,
              std::shared_ptr<const Strategy> strategy)
      : in_(in), values_(table_of(model->values)), calls_(table_of(model->calls)),
        params_(table_of(model->params)) {
    graph_.model = std::move(model);
    graph_.strategy = std::move(strategy);
    for (const ModelCall& call : graph_.model->calls)
      graph_.tags.push_back(call.annotations);
  }

  Graph read() {
    if (!in_.next_line())
      in_.fail_expected("\"graph\"");
    header();
    bool more = in_.next_line();
    while (more)
      more = section();
    return std::move(graph_);
  }

private:
  void header() {
    in_.expect("graph");
    std::string name = in_.name("the model's name");
    std::string_view hex = in_.bare("the model's fingerprint");
    auto fingerprint = Fingerprint::parse(hex);
    if (!fingerprint)
      in_.fail(fmt::format("\"{}\" is no fingerprint", hex));
    if (*fingerprint != graph_.model->fingerprint())
      in_.fail(fmt::format("the graph was made for another model: {} {}", name, hex),
               fmt::format("this one is {} {}", graph_.model->name,
                           graph_.model->fingerprint().to_string()));
    in_.expect("microbatches");
    graph_.microbatches = in_.integer("a number of microbatches");
    if (in_.accept("tag"))
      graph_.microbatch_tag = in_.name("the microbatches' tag");
    in_.end_line();
  }

  /// Reads what starts at this line; false when the text is over.
  bool section() {
    if (in_.accept("tags")) {
      uint32_t call = lookup_.call(in_);
      if (call >= graph_.tags.size())
        in_.fail("the model has no such call");
      do {
        graph_.tags[call].push_back(text::read_tag(in_));
      } while (in_.accept(","));
      in_.end_line();
    } else if (in_.accept("group")) {
      graph_.groups.push_back(text::read_group_line(in_, graph_.groups.size()));
    } else if (in_.accept("bucket")) {
      return bucket();
    } else if (in_.accept("region")) {
      return region();
    } else {
      in_.fail_expected("\"tags\", \"group\", \"bucket\" or \"region\"");
    }
    return in_.next_line();
  }

  bool bucket() {
    Bucket bucket = text::read_bucket_line(in_);
    if (!buckets_.emplace(bucket.name, static_cast<uint32_t>(buckets_.size())).second)
      in_.fail(fmt::format("a second bucket \"{}\"", bucket.name));
    bool more = in_.next_line();
    for (; more && in_.accept("param"); more = in_.next_line())
      text::read_bucket_param(in_, bucket, &params_);
    graph_.buckets.push_back(std::move(bucket));
    return more;
  }

  bool region() {
    std::string name = in_.name("a region's name");
    in_.end_line();
    std::vector<Node> nodes;
    bool more = in_.next_line();
    for (; more && !in_.starts_with("region"); more = in_.next_line())
      nodes.push_back(read_node(in_, lookup_));
    graph_.regions.push_back(std::make_shared<Region>(std::move(name), std::move(nodes)));
    return more;
  }

  Reader& in_;
  text::NameTable values_, calls_, params_, buckets_;
  Lookup lookup_{&values_, &calls_, &buckets_};
  Graph graph_;
};

} // namespace

std::string Graph::to_text() const {
  const Names names{model.get(), &buckets};
  std::string out;
  out.reserve(512 + 96 * node_count());
  out += "graph ";
  text::append_name(out, model->name);
  out += ' ' + model->fingerprint().to_string() + " microbatches ";
  text::append_int(out, microbatches);
  if (!microbatch_tag.empty()) {
    out += " tag ";
    text::append_name(out, microbatch_tag);
  }
  out += '\n';
  // Annotations are the model's; only what `tag` added is said here.
  for (size_t call = 0; call < tags.size(); ++call) {
    const size_t own = model->calls[call].annotations.size();
    for (size_t i = own; i < tags[call].size(); ++i) {
      if (i == own) {
        out += "tags ";
        names.append_call(out, static_cast<uint32_t>(call));
      }
      out += i == own ? " " : ", ";
      text::append_tag(out, tags[call][i]);
    }
    if (tags[call].size() > own)
      out += '\n';
  }
  text::append_groups(out, groups);
  text::append_buckets(out, buckets, model.get());
  for (const RegionPtr& region : regions) {
    out += "region ";
    text::append_name(out, region->name());
    out += '\n';
    for (const Node& node : region->nodes())
      append_node(out, names, node);
  }
  return out;
}

Result<Graph> Graph::parse(std::string_view text, std::shared_ptr<const ModelSpec> model,
                           std::shared_ptr<const Strategy> strategy) {
  return text::parsing(text, [&](Reader& in) {
    return GraphReader(in, std::move(model), std::move(strategy)).read();
  });
}

} // namespace piper::ir
