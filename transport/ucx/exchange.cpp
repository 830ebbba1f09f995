// Collectives as direct exchanges between all members.
//
// Small all-reduce: everyone sends all it has to everyone, and adds locally. Otherwise the elements
// fall into one range per rank. Scatter: each member sends range r to rank r, who adds what came in
// rank order. Gather: each member sends its finished range to everyone. Ranges move in pieces, so
// that adding and gathering early pieces overlaps with scattering late ones.
#include "transport/errors.h"
#include "transport/sum.h"
#include "transport/ucx/endpoint.h"

#include <algorithm>
#include <cstring>

namespace piper::transport {
namespace {

/// Up to this many bytes from all members together, one step that moves more beats two.
constexpr size_t kSmallBytes = 64 << 10;
constexpr size_t kPieceBytes = 256 << 10;
/// Pieces that are on their way to one member. Twice as many are awaited, so that those of a
/// faster peer find their place.
constexpr size_t kSendWindow = 2;
constexpr size_t kReceiveWindow = 2 * kSendWindow;

} // namespace

/// One member's part in one collective. Uses `scratch` for its operations and what comes in.
class UcxEndpoint::Exchange {
public:
  Exchange(UcxEndpoint& endpoint, const Collective& call, size_t rank, Scratch& scratch,
           Deadline deadline)
      : endpoint_(endpoint), worker_(endpoint.worker_), call_(call), rank_(rank), scratch_(scratch),
        deadline_(deadline) {}

  Result<void> run() {
    const size_t n = call_.group.size();
    const bool small = call_.kind == CollectiveKind::AllReduce && call_.bytes() * n <= kSmallBytes;
    auto result = small ? all_to_all() : scatter_and_gather();
    if (!result.ok())
      worker_.end({scratch_.ops.get(), used_});
    return result;
  }

private:
  size_t members() const { return call_.group.size(); }
  std::byte* data() const { return static_cast<std::byte*>(call_.data); }
  size_t first(size_t rank) const { return rank * call_.count / members(); }
  size_t length(size_t rank) const { return first(rank + 1) - first(rank); }
  size_t piece_elements() const { return kPieceBytes / call_.element(); }
  size_t pieces(size_t rank) const {
    return (length(rank) + piece_elements() - 1) / piece_elements();
  }
  /// The first element of a piece, and how many it has.
  std::pair<size_t, size_t> piece(size_t rank, size_t p) const {
    const size_t begin = p * piece_elements();
    return {first(rank) + begin, std::min(piece_elements(), length(rank) - begin)};
  }

  /// Operations and buffers of the sizes needed; grows what earlier collectives left.
  Result<void> prepare(size_t ops, size_t bytes) {
    if (scratch_.op_count < ops) {
      scratch_.ops = std::make_unique<UcxOp[]>(ops);
      scratch_.op_count = ops;
    } else {
      for (size_t i = 0; i < ops; ++i) {
        std::destroy_at(&scratch_.ops[i]);
        std::construct_at(&scratch_.ops[i]);
      }
    }
    used_ = ops;
    if (scratch_.bytes.size() < bytes)
      scratch_.bytes.resize(bytes);
    routes_.reserve(members());
    auto lock = worker_.lock();
    for (DeviceIndex device : call_.group) {
      PIPER_TRY(UcxRoute at, endpoint_.route(lock, device));
      routes_.push_back(at);
    }
    PIPER_TRY(own_tag_[0], make_tag(TagKind::Scatter, call_.key, endpoint_.self_, 0));
    PIPER_TRY(own_tag_[1], make_tag(TagKind::Gather, call_.key, endpoint_.self_, 0));
    for (size_t r = 0; r < members(); ++r) // of the same key, so only the device can be too large
      if (auto tag = make_tag(TagKind::Scatter, call_.key, call_.group[r], 0); !tag.ok())
        return tag.error();
    return {};
  }

  uint64_t tag_from(size_t r, TagKind kind) const {
    return *make_tag(kind, call_.key, call_.group[r], endpoint_.place_);
  }

  void receive(const UcxWorker::Lock& lock, UcxOp& op, size_t from, TagKind kind, void* to,
               size_t bytes) {
    op.tag = tag_from(from, kind);
    op.connection = routes_[from].connection;
    op.owner = &endpoint_;
    worker_.post_recv(lock, op, to, bytes);
  }

  void send(const UcxWorker::Lock& lock, UcxOp& op, size_t to, TagKind kind, const void* from,
            size_t bytes) {
    op.tag = own_tag_[kind == TagKind::Gather] | routes_[to].place;
    op.connection = routes_[to].connection;
    op.owner = &endpoint_;
    worker_.post_send(lock, op, from, bytes);
  }

  Result<void> await(UcxOp& op, size_t peer, size_t bytes) {
    const bool in_time = worker_.wait(op.done, deadline_);
    if (!in_time)
      worker_.end({&op, 1});
    return endpoint_.outcome(op, call_.group[peer], call_.key, bytes, !in_time);
  }

  Result<void> all_to_all() {
    const size_t n = members(), bytes = call_.bytes();
    PIPER_CHECK_OK(prepare(2 * n, n * bytes));
    UcxOp* const receives = scratch_.ops.get();
    UcxOp* const sends = receives + n;
    auto buffer = [&](size_t r) { return scratch_.bytes.data() + r * bytes; };
    {
      auto lock = worker_.lock();
      PIPER_CHECK_OK(endpoint_.check(lock, call_.key));
      for (size_t i = 1; i < n; ++i) {
        const size_t peer = (rank_ + i) % n;
        receive(lock, receives[peer], peer, TagKind::Scatter, buffer(peer), bytes);
        send(lock, sends[peer], peer, TagKind::Scatter, data(), bytes);
      }
    }
    for (size_t r = 0; r < n; ++r)
      if (r != rank_)
        PIPER_CHECK_OK(await(receives[r], r, bytes));
    for (size_t r = 0; r < n; ++r)
      if (r != rank_)
        PIPER_CHECK_OK(await(sends[r], r, bytes));
    std::vector<void*> sources(n);
    for (size_t r = 0; r < n; ++r)
      sources[r] = r == rank_ ? call_.data : buffer(r);
    sum(std::span<void* const>(&call_.data, 1), sources, 0, call_.count, call_.dtype);
    return {};
  }

  Result<void> scatter_and_gather() {
    const bool scatter = call_.kind != CollectiveKind::AllGather;
    const bool gather = call_.kind != CollectiveKind::ReduceScatter;
    const size_t n = members(), element = call_.element(), own = pieces(rank_);
    size_t others = 0;
    for (size_t r = 0; r < n; ++r)
      others += r == rank_ ? 0 : pieces(r);

    // The operations: [sends of others' ranges][receives of mine, by slot][the same for gather].
    const size_t slots = std::min(own, kReceiveWindow);
    const size_t scatter_ops = scatter ? others + slots * n : 0;
    const size_t gather_ops = gather ? others + own * n : 0;
    PIPER_CHECK_OK(prepare(scatter_ops + gather_ops, scatter ? slots * n * kPieceBytes : 0));
    UcxOp* const scatter_sends = scatter_ops ? scratch_.ops.get() : nullptr;
    UcxOp* const scatter_receives = scatter_sends + (scatter ? others : 0);
    UcxOp* const gather_receives = scratch_.ops.get() + scatter_ops;
    UcxOp* const gather_sends = gather_receives + others;
    auto buffer = [&](size_t slot, size_t r) {
      return scratch_.bytes.data() + (slot * n + r) * kPieceBytes;
    };
    // For each other rank, and each of its pieces up to the limit: f(rank, piece, running number).
    auto for_others = [&](auto f) {
      size_t base = 0;
      for (size_t i = 1; i < n; ++i) {
        const size_t r = (rank_ + i) % n;
        f(r, base);
        base += pieces(r);
      }
    };
    size_t most_pieces = 0;
    for (size_t r = 0; r < n; ++r)
      most_pieces = std::max(most_pieces, pieces(r));
    auto send_piece = [&](const UcxWorker::Lock& lock, size_t p) {
      for_others([&](size_t r, size_t base) {
        if (p >= pieces(r))
          return;
        const auto [begin, count] = piece(r, p);
        send(lock, scatter_sends[base + p], r, TagKind::Scatter, data() + begin * element,
             count * element);
      });
    };
    auto receive_piece = [&](const UcxWorker::Lock& lock, size_t p) {
      if (p >= own)
        return;
      const auto [begin, count] = piece(rank_, p);
      for (size_t r = 0; r < n; ++r) {
        if (r == rank_)
          continue;
        UcxOp& op = scatter_receives[p % slots * n + r];
        std::destroy_at(&op);
        std::construct_at(&op);
        receive(lock, op, r, TagKind::Scatter, buffer(p % slots, r), count * element);
      }
    };
    auto gather_piece = [&](const UcxWorker::Lock& lock, size_t p) {
      const auto [begin, count] = piece(rank_, p);
      for (size_t i = 1; i < n; ++i) {
        const size_t r = (rank_ + i) % n;
        send(lock, gather_sends[p * n + r], r, TagKind::Gather, data() + begin * element,
             count * element);
      }
    };

    {
      auto lock = worker_.lock();
      PIPER_CHECK_OK(endpoint_.check(lock, call_.key));
      if (gather) // a peer finishes a piece only after it got ours, so that may be overwritten
        for_others([&](size_t r, size_t base) {
          for (size_t p = 0; p < pieces(r); ++p) {
            const auto [begin, count] = piece(r, p);
            receive(lock, gather_receives[base + p], r, TagKind::Gather, data() + begin * element,
                    count * element);
          }
        });
      if (scatter) {
        for (size_t p = 0; p < slots; ++p)
          receive_piece(lock, p);
        for (size_t p = 0; p < kSendWindow; ++p)
          send_piece(lock, p);
      } else {
        for (size_t p = 0; p < own; ++p)
          gather_piece(lock, p);
      }
    }
    if (scatter) {
      std::vector<void*> sources(n);
      for (size_t p = 0; p < most_pieces; ++p) {
        if (p < own) {
          const auto [begin, count] = piece(rank_, p);
          std::byte* const mine = data() + begin * element;
          for (size_t r = 0; r < n; ++r) {
            sources[r] = r == rank_ ? mine : buffer(p % slots, r);
            if (r != rank_)
              PIPER_CHECK_OK(await(scatter_receives[p % slots * n + r], r, count * element));
          }
          void* to = mine;
          sum(std::span<void* const>(&to, 1), sources, 0, count, call_.dtype);
        }
        auto lock = worker_.lock();
        PIPER_CHECK_OK(endpoint_.check(lock, call_.key));
        if (gather && p < own)
          gather_piece(lock, p);
        send_piece(lock, p + kSendWindow);
        receive_piece(lock, p + slots);
      }
    }
    // All that is left, in any order.
    Result<void> result;
    auto finish = [&](UcxOp& op, size_t r, size_t p) {
      if (result.ok())
        result = await(op, r, piece(r, p).second * element);
    };
    for_others([&](size_t r, size_t base) {
      for (size_t p = 0; p < pieces(r); ++p) {
        if (gather)
          finish(gather_receives[base + p], r, p);
        if (scatter)
          finish(scatter_sends[base + p], r, p);
      }
      for (size_t p = 0; gather && p < own; ++p)
        finish(gather_sends[p * n + r], rank_, p);
    });
    return result;
  }

  UcxEndpoint& endpoint_;
  UcxWorker& worker_;
  const Collective& call_;
  const size_t rank_;
  Scratch& scratch_;
  const Deadline deadline_;
  std::vector<UcxRoute> routes_; ///< by rank
  uint64_t own_tag_[2] = {};     ///< scatter, gather; without the receiver's place
  size_t used_ = 0;
};

Result<void> UcxEndpoint::collective(const Collective& call, Deadline deadline) {
  PIPER_TRY(size_t rank, call.check(self_));
  std::unique_ptr<Scratch> scratch;
  {
    auto lock = worker_.lock();
    PIPER_CHECK_OK(check(lock, call.key));
    if (call.group.size() == 1)
      return {};
    if (!scratch_.empty()) {
      scratch = std::move(scratch_.back());
      scratch_.pop_back();
    }
  }
  if (!scratch)
    scratch = std::make_unique<Scratch>();
  sent_.fetch_add(call.wire_bytes(), std::memory_order_relaxed);
  auto result = Exchange(*this, call, rank, *scratch, deadline).run();
  auto lock = worker_.lock();
  scratch_.push_back(std::move(scratch));
  return result;
}

} // namespace piper::transport
