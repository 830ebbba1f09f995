#include "transport/loopback/meeting.h"

#include "transport/errors.h"
#include "transport/sum.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

namespace piper::transport {
namespace {

/// Small enough to share the work of a medium collective, large enough that claiming is free.
constexpr size_t kBlockBytes = 64 << 10;

} // namespace

Meetings::Meetings(size_t devices, Spinner& spinner) : devices_(devices), spinner_(spinner) {
  for (int i = 0; i < 8; ++i)
    add_free();
}

void Meetings::add_free() {
  Meeting& fresh = free_.emplace_back();
  fresh.group.reserve(devices_);
  fresh.data.reserve(devices_);
  fresh.members.reserve(devices_);
}

Meetings::List::iterator Meetings::find_or_open(const Collective& call, size_t rank) {
  auto at = std::find_if(open_.begin(), open_.end(), [&](const Meeting& m) {
    return m.call.kind == call.kind && m.call.key == call.key && !m.members[rank] &&
           std::equal(m.group.begin(), m.group.end(), call.group.begin(), call.group.end());
  });
  if (at != open_.end())
    return at;
  if (free_.empty())
    add_free();
  Meeting& m = free_.front();
  m.call = call;
  m.group.assign(call.group.begin(), call.group.end());
  m.data.assign(call.group.size(), nullptr);
  m.members.assign(call.group.size(), nullptr);
  m.arrived = 0;
  m.claimed = m.finished = m.left = 0;
  open_.splice(open_.end(), free_, free_.begin());
  return std::prev(open_.end());
}

void Meetings::withdraw(List::iterator meeting, size_t rank) {
  meeting->members[rank] = nullptr;
  if (--meeting->arrived == 0)
    free_.splice(free_.begin(), open_, meeting);
}

Result<void> Meetings::join(const Collective& call, size_t rank, Inbox& inbox, Deadline deadline) {
  Member me;
  std::unique_lock lock(mutex_);
  PIPER_CHECK_OK(inbox.check(call.key)); // under the lock, or `leave` could miss this member
  auto meeting = find_or_open(call, rank);
  Meeting& m = *meeting;
  if (m.call.count != call.count || m.call.dtype != call.dtype)
    return internal_error(
        fmt::format("collective ({}): {} elements of type {}, but another member brought {} of {}",
                    to_string(call.key), call.count, ir::to_string(call.dtype), m.call.count,
                    ir::to_string(m.call.dtype)),
        fmt::format("device {}", call.group[rank]));
  m.members[rank] = &me;
  m.data[rank] = call.data;
  ++m.arrived;
  const bool last = m.arrived == m.members.size();
  if (last) {
    // Blocks don't cross the ranges of a scatter or gather.
    const size_t ranges = call.kind == CollectiveKind::AllReduce ? 1 : m.members.size();
    const size_t range = call.count / ranges;
    m.block_elements = std::max<size_t>(1, std::min(range, kBlockBytes / call.element()));
    m.blocks = ranges * ((range + m.block_elements - 1) / m.block_elements);
    running_.splice(running_.end(), open_, meeting);
  }
  lock.unlock();

  if (last) {
    if (m.blocks <= 1) // done before the others could have woken
      work(m);
    for (size_t r = 0; r < m.members.size(); ++r) {
      if (m.blocks == 0)
        m.members[r]->done.set();
      m.members[r]->begun.set();
    }
  } else if (!me.begun.wait_until(deadline, spinner_)) {
    lock.lock();
    if (!me.error && m.members[rank] == &me && m.arrived < m.members.size()) {
      std::vector<DeviceIndex> missing;
      for (size_t r = 0; r < m.members.size(); ++r)
        if (!m.members[r])
          missing.push_back(m.group[r]);
      withdraw(meeting, rank);
      return timeout_error(call.group[rank], missing, call.key);
    }
    lock.unlock();
    me.begun.wait_until(Deadline::max(), spinner_); // the last one came just now
  }
  if (me.error)
    return std::move(*me.error);

  work(m);
  // Others may still read or write this member's buffer; they are running, so this is short.
  me.done.wait_until(Deadline::max(), spinner_);
  const size_t members = m.members.size(); // once this one has left, it may be another meeting's
  if (m.left.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
    lock.lock();
    free_.splice(free_.begin(), running_, meeting);
  }
  return {};
}

void Meetings::work(Meeting& m) {
  const size_t blocks = m.blocks;
  for (size_t b; (b = m.claimed.fetch_add(1, std::memory_order_relaxed)) < blocks;) {
    do_block(m, b);
    if (m.finished.fetch_add(1, std::memory_order_acq_rel) + 1 == blocks)
      for (Member* member : m.members)
        member->done.set();
  }
}

void Meetings::do_block(Meeting& m, size_t block) {
  const size_t n = m.data.size();
  const size_t ranges = m.call.kind == CollectiveKind::AllReduce ? 1 : n;
  const size_t range = m.call.count / ranges;
  const size_t blocks_per_range = m.blocks / ranges;
  const size_t owner = block / blocks_per_range;
  const size_t begin = block % blocks_per_range * m.block_elements;
  const size_t count = std::min(m.block_elements, range - begin);
  const size_t first = owner * range + begin;
  if (m.call.kind == CollectiveKind::AllReduce)
    return sum(m.data, m.data, first, count, m.call.dtype);
  if (m.call.kind == CollectiveKind::ReduceScatter)
    return sum(std::span(m.data).subspan(owner, 1), m.data, first, count, m.call.dtype);
  const size_t element = m.call.element();
  auto at = [&](size_t r) { return static_cast<std::byte*>(m.data[r]) + first * element; };
  for (size_t r = 0; r < n; ++r)
    if (r != owner)
      std::memcpy(at(r), at(owner), count * element);
}

void Meetings::leave(DeviceIndex device, const Error& reason, ir::Epoch oldest) {
  std::lock_guard lock(mutex_);
  for (auto at = open_.begin(); at != open_.end();) {
    auto meeting = at++;
    if (meeting->call.key.epoch >= oldest)
      continue;
    const auto rank = static_cast<size_t>(
        std::find(meeting->group.begin(), meeting->group.end(), device) - meeting->group.begin());
    if (rank == meeting->group.size() || !meeting->members[rank])
      continue;
    Member* member = meeting->members[rank];
    withdraw(meeting, rank);
    member->error = reason;
    member->begun.set();
  }
}

} // namespace piper::transport
