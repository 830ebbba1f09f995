// Collectives of one process: the members meet, then share the work.
//
// The elements are cut into blocks. Each member that has arrived claims blocks until none is left:
// it reads a block from the buffers of all members and writes the result to all who want it. So no
// result depends on who did the work, and a member that sleeps holds up nobody.
#pragma once

#include "transport/collective.h"
#include "transport/loopback/inbox.h"

#include <vector>

namespace piper::transport {

/// The meetings of one process. Safe for any number of threads; allocates only when more meetings
/// are held at once than ever before, and more than 8.
class Meetings {
public:
  Meetings(size_t devices, Spinner& spinner);

  /// Takes part as `rank`, which `call.check` gave, unless `inbox`, the member's own, is aborted.
  /// Timeout names the members that did not come; once all have come it cannot fail.
  Result<void> join(const Collective& call, size_t rank, Inbox& inbox, Deadline deadline);
  /// To be called after the same was told to the device's inbox. Takes `device` out of the meetings
  /// that others have not joined yet, with `reason`; with `oldest` only out of those of earlier
  /// epochs.
  void leave(DeviceIndex device, const Error& reason, ir::Epoch oldest = UINT32_MAX);

private:
  struct Member {
    Event begun; ///< all have come, or `error` is set
    Event done;  ///< all blocks are done
    std::optional<Error> error;
  };
  struct Meeting {
    Collective call{}; ///< of the first member; its group is not looked at after it is full
    std::vector<DeviceIndex> group;
    std::vector<void*> data;      ///< by rank
    std::vector<Member*> members; ///< by rank; null until it has come
    size_t arrived = 0;
    size_t blocks = 0;
    size_t block_elements = 0;
    std::atomic<size_t> claimed{0};
    std::atomic<size_t> finished{0};
    std::atomic<size_t> left{0};
  };
  using List = std::list<Meeting>; // nodes only ever move between lists

  void add_free();
  List::iterator find_or_open(const Collective& call, size_t rank);
  void withdraw(List::iterator meeting, size_t rank);
  static void work(Meeting& meeting);
  static void do_block(Meeting& meeting, size_t block);

  const size_t devices_;
  Spinner& spinner_;
  std::mutex mutex_;
  List open_; ///< not all have come; oldest first
  List running_;
  List free_;
};

} // namespace piper::transport
