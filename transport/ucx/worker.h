// The engine of the UCX backend: one UCX worker, the operations posted to it, and who drives it.
//
// A thread that waits drives the worker itself: it polls for a short while, then one such thread
// (the leader) sleeps on the worker's file descriptor and the others on their operations. When
// nobody waits but something is in flight, a background thread leads. All UCX calls, and thereby
// all callbacks, happen under one mutex.
#pragma once

#include "transport/ucx/fabric.h"
#include "transport/ucx/tag.h"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <ucp/api/ucp.h>

namespace piper::transport {

/// The connection to a process. Its fields are guarded by the worker's mutex.
struct UcxConnection {
  enum class State { Alive, Left, Lost };
  class UcxWorker* worker = nullptr;
  ucp_ep_h ep = nullptr; ///< null once closed
  std::vector<DeviceIndex> devices;
  bool own = false; ///< of the process to itself
  State state = State::Alive;
  std::string why; ///< of a loss
};

/// A posted receive, or a send from memory that the caller keeps in place until it is done.
struct UcxOp {
  Event done;
  ucs_status_t status = UCS_INPROGRESS;
  size_t length = 0; ///< bytes that the sender sent, for a receive
  bool is_send = false;
  void* request = nullptr;
  uint64_t tag = 0;
  UcxConnection* connection = nullptr;
  const void* owner = nullptr;           ///< the endpoint, to abort all of its operations
  Deadline give_up_at = Deadline::max(); ///< when its peer counts as lost if it is not done
  UcxWorker* worker = nullptr;
  UcxOp* next = nullptr; ///< in the worker's list of posted operations
  UcxOp** link = nullptr;
};

/// A send of a payload; owned by the worker from `send` on.
struct UcxSend {
  Payload payload;
  DeviceIndex to = 0;
  Key key;
  UcxConnection* connection = nullptr;
  /// Called once, under the worker's mutex, when the payload has left or never will.
  void (*finished)(UcxSend& send, ucs_status_t status) = nullptr;
  void* owner = nullptr;
  UcxWorker* worker = nullptr;
  UcxSend* next = nullptr; ///< in the worker's list of free ones
};

class UcxWorker {
public:
  static Result<std::unique_ptr<UcxWorker>> create(const UcxOptions& options);
  ~UcxWorker();

  const std::string& address() const { return address_; }
  /// `own` is the process's connection to itself.
  Result<UcxConnection*> connect(const std::string& address, std::vector<DeviceIndex> devices,
                                 bool own);

  using Lock = std::unique_lock<std::mutex>;
  Lock lock() { return Lock(mutex_); }

  // Under the lock. A posted operation ends by itself, when it is abandoned, or with its
  // connection; the worker keeps a pointer to it until then.
  void post_recv(const Lock&, UcxOp& op, void* data, size_t bytes);
  void post_send(const Lock&, UcxOp& op, const void* data, size_t bytes);
  UcxSend* allocate_send(const Lock&);
  void send(const Lock&, UcxSend* send, uint64_t tag);
  /// Makes an operation end soon: a receive is cancelled, of a send the peer is asked to drop what
  /// came. A peer that does not answer within a second is given up.
  void abandon(const Lock&, UcxOp& op);
  /// All of an endpoint's.
  void abandon(const Lock&, const void* owner);
  /// Drops messages that have arrived and that nobody has asked for.
  void drop_messages(const Lock&, const TagPattern& pattern);
  /// Sets an event that some thread waits for with `wait`.
  void wake(Event& event);

  // Without the lock.
  /// Whether the event was set by the deadline.
  bool wait(Event& event, Deadline deadline);
  /// Abandons what is not done yet, and returns once all is.
  void end(std::span<UcxOp> ops);
  /// Has someone drive what was just sent, as the caller will not wait for it.
  void drive_in_background();
  /// Called by the background thread about 20 times a second, under the lock. Set under the lock.
  std::function<void(const Lock&)> on_tick;

private:
  explicit UcxWorker(const UcxOptions& options) : spinner_(options.spin), linger_(options.linger) {}
  Result<void> open(const UcxOptions& options);
  unsigned progress(const Lock&);
  void complete(UcxOp& op, ucs_status_t status, size_t length);
  void complete(UcxSend* send, ucs_status_t status);
  void posted(UcxOp& op, ucs_status_ptr_t request);
  void close(UcxConnection& connection, bool force);
  bool drive_until(const std::function<bool()>& done, Deadline deadline);
  void give_up(const Lock&, UcxConnection& connection, const char* why);
  void settle(const Lock&);
  void lead(const std::function<bool()>& stop, Deadline deadline);
  bool drop_message(uint64_t tag, uint64_t mask = UINT64_MAX);
  void kick();
  void hand_over();
  void tick(const Lock&);
  void run_background();
  void say_goodbye(std::chrono::milliseconds linger);

  static void on_failure(void* connection, ucp_ep_h ep, ucs_status_t status);
  static ucs_status_t on_goodbye(void* worker, const void* header, size_t header_length, void*,
                                 size_t, const ucp_am_recv_param_t*);
  static ucs_status_t on_retract(void* worker, const void* header, size_t header_length, void*,
                                 size_t, const ucp_am_recv_param_t*);
  void send_note(UcxConnection& connection, unsigned id, const void* header, size_t bytes);

  Spinner spinner_;
  const std::chrono::milliseconds linger_;
  std::string address_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int worker_fd_ = -1;
  int kick_fd_ = -1;

  std::mutex mutex_;
  std::vector<std::unique_ptr<UcxConnection>> connections_;
  UcxOp* ops_ = nullptr;
  UcxSend* free_sends_ = nullptr;
  size_t closing_ = 0;                 ///< endpoints whose close has not completed
  std::vector<UcxConnection*> failed_; ///< by a callback, to be settled after it
  Event* leaders_event_ = nullptr;     ///< what the sleeping leader waits for

  std::atomic<size_t> outstanding_{0}; ///< operations and sends in flight
  std::atomic<int> polling_{0};        ///< callers that poll
  std::atomic<bool> leading_{false};
  std::atomic<bool> asleep_{false}; ///< the leader sleeps in the kernel
  std::mutex background_mutex_;
  std::condition_variable background_wake_;
  bool background_wanted_ = false;
  bool stop_ = false;
  std::thread background_;
};

} // namespace piper::transport
