#include "actors/executor/offload_pool.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace piper::executor {

namespace {

/// The file grows by at least so many bytes.
constexpr int64_t kArena = int64_t{16} << 20;
constexpr int64_t kAlignment = 64;

int64_t align(int64_t bytes, int64_t to) {
  return (bytes + to - 1) / to * to;
}

class FilePool final : public OffloadPool, public std::enable_shared_from_this<FilePool> {
public:
  explicit FilePool(std::string directory) : directory_(std::move(directory)) {}
  FilePool(const FilePool&) = delete;
  FilePool& operator=(const FilePool&) = delete;
  ~FilePool() override {
    unmap();
    if (file_ >= 0)
      close(file_);
  }

  at::Tensor empty(int64_t count, at::ScalarType dtype) override {
    const int64_t bytes = align(
        std::max<int64_t>(count, 1) * static_cast<int64_t>(c10::elementSize(dtype)), kAlignment);
    void* block = allocate(bytes);
    return at::from_blob(
        block, {count}, [pool = shared_from_this(), bytes](void* used) { pool->free(used, bytes); },
        at::TensorOptions().dtype(dtype));
  }

  int64_t live() const override {
    std::lock_guard lock(mutex_);
    return live_;
  }
  int64_t peak() const override {
    std::lock_guard lock(mutex_);
    return peak_;
  }

private:
  struct Arena {
    char* begin;
    int64_t size;
  };

  void* allocate(int64_t bytes) {
    std::lock_guard lock(mutex_);
    void* block = nullptr;
    if (auto& same = free_[bytes]; !same.empty()) {
      block = same.back();
      same.pop_back();
    } else {
      if (live_ == 0)
        unmap(); // what an earlier plan needed
      if (arenas_.empty() || used_ + bytes > arenas_.back().size)
        grow(bytes);
      block = arenas_.back().begin + used_;
      used_ += bytes;
    }
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    return block;
  }

  void free(void* block, int64_t bytes) {
    std::lock_guard lock(mutex_);
    free_[bytes].push_back(block);
    live_ -= bytes;
  }

  void grow(int64_t bytes) {
    if (file_ < 0)
      open_file();
    const int64_t size = align(std::max(bytes, kArena), sysconf(_SC_PAGESIZE));
    // Blocks of the file first: a full disk is an error here, and would be a signal later.
    if (const int error = posix_fallocate(file_, end_, size); error != 0)
      fail(fmt::format("grow by {} bytes", bytes), error);
    void* mapped =
        mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file_, end_);
    if (mapped == MAP_FAILED)
      fail(fmt::format("grow by {} bytes", bytes), errno);
    arenas_.push_back({static_cast<char*>(mapped), size});
    end_ += size;
    used_ = 0;
  }

  void open_file() {
    if (directory_.empty())
      directory_ = std::filesystem::temp_directory_path().string();
    file_ = open(directory_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file_ >= 0)
      return;
    // Not every file system has files without a name: one that has one for a moment.
    std::string path = directory_ + "/piper-offload-XXXXXX";
    file_ = mkostemp(path.data(), O_CLOEXEC);
    if (file_ < 0)
      fail("be made", errno);
    unlink(path.c_str());
  }

  [[noreturn]] void fail(const std::string& what, int error) const {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "the offload file in ", directory_, " cannot ", what,
                     ": ", std::strerror(error));
  }

  void unmap() {
    for (const Arena& arena : arenas_)
      munmap(arena.begin, static_cast<size_t>(arena.size));
    arenas_.clear();
    free_.clear();
    used_ = end_ = 0;
    if (file_ >= 0 && ftruncate(file_, 0) != 0) {
      // It stays as large as it was.
    }
  }

  std::string directory_;
  mutable std::mutex mutex_; ///< of what follows
  int file_ = -1;
  std::vector<Arena> arenas_;
  int64_t used_ = 0, end_ = 0; ///< of the last arena; of the file
  std::map<int64_t, std::vector<void*>> free_;
  int64_t live_ = 0, peak_ = 0;
};

} // namespace

std::shared_ptr<OffloadPool> OffloadPool::make(std::string directory) {
  return std::make_shared<FilePool>(std::move(directory));
}

} // namespace piper::executor
