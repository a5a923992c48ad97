#include "trainer/sharding/communicator.h"

#include <ATen/ops/from_blob.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trainer/device/libtorch_messages.h"
#include "trainer/sharding/cuda_peer_memory.h"
#include "trainer/sharding/listening_socket.h"
#include "trainer/sharding/local_address.h"
#include "trainer/sharding/nccl_backend.h"

namespace distill::sharding {
namespace {

// The time in which the ranks of a group must find out whether they can map each other's memory.
constexpr std::chrono::seconds kPeerMemoryTimeout{60};

// A c10d backend behind our interface.
class BackendCommunicator : public Communicator {
 public:
  BackendCommunicator(c10::intrusive_ptr<c10d::Backend> backend, std::string name, bool on_host)
      : backend_(std::move(backend)), name_(std::move(name)), on_host_(on_host) {}

  int64_t rank() const override {
    return backend_->getRank();
  }
  int64_t size() const override {
    return backend_->getSize();
  }
  void all_gather(at::Tensor full, const at::Tensor& shard) override {
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    run("an all-gather", {std::move(full), shard},
        [&](std::vector<at::Tensor>& tensors) { return backend_->_allgather_base(tensors[0], tensors[1], options); });
  }
  void reduce_scatter(at::Tensor shard, const at::Tensor& full) override {
    c10d::ReduceScatterOptions options;
    options.asyncOp = false;
    run("a reduce-scatter", {std::move(shard), full}, [&](std::vector<at::Tensor>& tensors) {
      return backend_->_reduce_scatter_base(tensors[0], tensors[1], options);
    });
  }
  void all_reduce(at::Tensor tensor) override {
    all_reduce(std::move(tensor), c10d::ReduceOp::SUM);
  }
  void all_reduce_max(at::Tensor tensor) override {
    all_reduce(std::move(tensor), c10d::ReduceOp::MAX);
  }
  void all_reduce(at::Tensor tensor, const c10d::ReduceOp& op) {
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    options.asyncOp = false;
    run("an all-reduce", {std::move(tensor)},
        [&](std::vector<at::Tensor>& tensors) { return backend_->allreduce(tensors, options); });
  }
  void broadcast(at::Tensor tensor, int64_t root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.asyncOp = false;
    run("a broadcast", {std::move(tensor)},
        [&](std::vector<at::Tensor>& tensors) { return backend_->broadcast(tensors, options); });
  }
  void shutdown() override {
    backend_->shutdown();
  }

 private:
  // On CUDA the collective is already queued on the current stream, so that nothing has to wait here. On the host, a
  // thread of Gloo's may hold the tensors for a while after wait() has returned: it gets views that own no memory, so
  // that the caller's memory is free when the caller frees it. If an operation fails, its threads may still write, and
  // the memory is never freed.
  template <typename Queue>
  void run(const char* operation, std::vector<at::Tensor> tensors, Queue&& queue) const {
    std::vector<at::Tensor> lent = tensors;
    for (at::Tensor& tensor : lent) {
      tensor = on_host_ ? at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options()) : tensor;
    }
    try {
      const c10::intrusive_ptr<c10d::Work> work = queue(lent);
      if (on_host_ && work) {
        try {
          work->wait();
        } catch (...) {
          static_cast<void>(new std::vector<at::Tensor>(std::move(tensors)));
          throw;
        }
      }
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const std::exception& error) {
      fail(operation, device::error_text(error));
    }
  }
  [[noreturn]] void fail(const char* operation, const std::string& reason) const {
    throw CommunicationError(absl::StrCat(operation, " of group '", name_, "' failed: ", reason));
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string name_;
  bool on_host_;
};

// The device that Gloo listens on and connects from: GLOO_SOCKET_IFNAME's if it is set, otherwise the one through which
// this host reaches rank 0. The host's own name may resolve to loopback.
std::shared_ptr<gloo::transport::Device> gloo_device(const std::string& master_addr) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface != nullptr && *interface != '\0') {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  return c10d::ProcessGroupGloo::createDeviceForHostname(address_towards(master_addr));
}

class StoreBoard : public Board {
 public:
  explicit StoreBoard(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& text) override {
    store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
  }
  std::optional<std::string> get(const std::string& key) override {
    if (!store_->check({key})) {
      return std::nullopt;
    }
    const std::vector<uint8_t> bytes = store_->get(key);
    return std::string(bytes.begin(), bytes.end());
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

// Returns the texts of all of `size` ranks under `key`.
std::vector<std::string> exchange_texts(
    c10d::Store& store, const std::string& key, int64_t rank, int64_t size, const std::string& text) {
  const auto key_of = [&key](int64_t other) { return absl::StrCat(key, "/", other); };
  store.set(key_of(rank), std::vector<uint8_t>(text.begin(), text.end()));
  std::vector<std::string> texts;
  for (int64_t other = 0; other < size; ++other) {
    const std::vector<uint8_t> bytes = store.get(key_of(other)); // waits for it
    texts.emplace_back(bytes.begin(), bytes.end());
  }
  return texts;
}

class StoreRendezvous : public Rendezvous {
 public:
  StoreRendezvous(c10::intrusive_ptr<c10d::Store> store, RendezvousOptions options)
      : store_(std::move(store)), options_(std::move(options)) {}

  int64_t rank() const override {
    return options_.rank;
  }
  int64_t world_size() const override {
    return options_.world_size;
  }

  std::unique_ptr<Board> board() const override {
    return std::make_unique<StoreBoard>(store_->clone());
  }
  std::unique_ptr<Communicator> gloo_group(const std::string& name, const std::vector<int64_t>& members) override {
    const auto place = place_in(members);
    if (!place) {
      return nullptr;
    }
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(gloo_device(options_.master_addr));
    options->timeout = options_.timeout;
    options->threads = 2;
    auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(name, store_), static_cast<int>(*place),
        static_cast<int>(members.size()), std::move(options));
    return std::make_unique<BackendCommunicator>(std::move(backend), name, /*on_host=*/true);
  }

  std::unique_ptr<Communicator> nccl_group(
      const std::string& name, const std::vector<int64_t>& members, at::Device device) override {
    const auto place = place_in(members);
    if (!place) {
      return nullptr;
    }
    auto backend = make_nccl_backend(
        c10::make_intrusive<c10d::PrefixStore>(name, store_), *place, static_cast<int64_t>(members.size()),
        options_.timeout, options_.nccl_max_ctas, device);
    return std::make_unique<BackendCommunicator>(std::move(backend), name, /*on_host=*/false);
  }

  std::unique_ptr<PeerMemory> peer_memory(
      const std::string& name, const std::vector<int64_t>& members, at::Device device) override {
    const auto place = place_in(members);
    if (!place) {
      return nullptr;
    }
    const auto size = static_cast<int64_t>(members.size());
    // A rank that fails here leaves the others waiting, who then do without. It waits for their answer with the whole
    // timeout (choose_gather.cpp), so that they must give up well before that.
    const c10::intrusive_ptr<c10d::Store> connection = store_->clone();
    connection->setTimeout(std::min<std::chrono::milliseconds>(options_.timeout / 3, kPeerMemoryTimeout));
    const auto store = c10::make_intrusive<c10d::PrefixStore>(name, connection);
    const Exchange exchange = [store, rank = *place, size, calls = int64_t{0}](const std::string& text) mutable {
      return exchange_texts(*store, absl::StrCat("exchange/", calls++), rank, size, text);
    };
    std::unique_ptr<PeerMemory> memory =
        device.is_cuda() ? cuda_peer_memory(store, name, *place, size, device) : host_peer_memory(*place, exchange);
    probe(*memory, *place, device, [store, rank = *place, size, calls = int64_t{0}](const std::string& text) mutable {
      return exchange_texts(*store, absl::StrCat("probe/", calls++), rank, size, text);
    });
    connection->setTimeout(options_.timeout);
    return memory;
  }

  std::vector<std::string> exchange(const std::string& key, const std::string& text) override {
    return exchange_texts(*store_, key, options_.rank, options_.world_size, text);
  }

  bool meet(const std::string& key, std::chrono::milliseconds timeout) override {
    return arrive(absl::StrCat("meet/", key), options_.world_size, /*waits=*/true, timeout);
  }
  bool leave(std::chrono::milliseconds timeout) override {
    // Rank 0 does not count itself: the others do not wait for it, and it waits for all of them.
    return options_.rank == 0 ? options_.world_size == 1 || wait_for(all_key("left"), timeout)
                              : arrive("left", options_.world_size - 1, /*waits=*/false, timeout);
  }

 private:
  static std::string all_key(const std::string& key) {
    return absl::StrCat(key, "/all");
  }
  bool wait_for(const std::string& key, std::chrono::milliseconds timeout) {
    try {
      store_->wait({key}, std::max(timeout, std::chrono::milliseconds(1))); // c10d takes 0 for no limit
      return true;
    } catch (const std::exception&) { // it took too long, or the store is gone
      return false;
    }
  }
  // Counts this rank under `key`. The last one of `count` ranks posts it to those that wait.
  bool arrive(const std::string& key, int64_t count, bool waits, std::chrono::milliseconds timeout) {
    try {
      if (store_->add(key, 1) == count) {
        store_->set(all_key(key), std::vector<uint8_t>{1});
      }
    } catch (const std::exception&) {
      return false;
    }
    return !waits || wait_for(all_key(key), timeout);
  }
  std::optional<int64_t> place_in(const std::vector<int64_t>& members) const {
    const auto it = std::find(members.begin(), members.end(), options_.rank);
    return it == members.end() ? std::nullopt : std::optional<int64_t>(it - members.begin());
  }
  c10::intrusive_ptr<c10d::Store> store_;
  RendezvousOptions options_;
};

bool is_bound_to(int fd, int64_t port) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  return fd >= 0 && ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
      address.sin_family == AF_INET && ntohs(address.sin_port) == port;
}

// Returns the store's socket: the inherited one, or one that is bound to rank 0's address alone. nullopt: the store
// makes one of its own, on all addresses.
std::optional<int> listening_socket(const RendezvousOptions& options) {
  if (is_bound_to(options.master_listen_fd, options.master_port)) {
    return options.master_listen_fd;
  }
  const int fd = bind_to_one_address(options.master_addr, options.master_port);
  return fd >= 0 ? std::optional<int>(fd) : std::nullopt;
}

std::string arrived_key(int64_t rank) {
  return absl::StrCat("arrived/", rank);
}

// Lists the ranks that have not registered in the store.
std::vector<int64_t> missing_ranks(c10d::Store& store, int64_t world_size) {
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    if (!store.check({arrived_key(rank)})) {
      missing.push_back(rank);
    }
  }
  return missing;
}

} // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::join(const RendezvousOptions& options) {
  const std::string place =
      absl::StrCat(options.master_addr, ":", options.master_port, ", rank ", options.rank, " of ", options.world_size);
  c10::intrusive_ptr<c10d::Store> store;
  try {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<uint16_t>(options.master_port);
    store_options.isServer = options.rank == 0 && !options.launcher_serves;
    store_options.numWorkers = static_cast<size_t>(options.world_size);
    store_options.waitWorkers = false;
    store_options.timeout = options.timeout;
    if (store_options.isServer) {
      store_options.masterListenFd = listening_socket(options);
    }
    // The store of a launcher outlives a failed attempt, whose keys are of no use to the next one.
    store = c10::make_intrusive<c10d::PrefixStore>(
        absl::StrCat("distill/attempt-", options.attempt),
        c10::make_intrusive<c10d::TCPStore>(options.master_addr, store_options));
  } catch (const std::exception& error) {
    const char* action = options.launcher_serves ? "cannot reach the launcher's store at "
        : options.rank == 0                      ? "cannot listen at "
                                                 : "cannot reach rank 0 at ";
    return absl::UnavailableError(absl::StrCat(
        action, place, ": ", device::error_text(error),
        "; check MASTER_ADDR and MASTER_PORT, and that the port is free and not blocked"));
  }
  try {
    const std::vector<uint8_t> here{1};
    store->set(arrived_key(options.rank), here);
    std::vector<std::string> keys;
    keys.reserve(static_cast<size_t>(options.world_size));
    for (int64_t rank = 0; rank < options.world_size; ++rank) {
      keys.push_back(arrived_key(rank));
    }
    store->wait(keys, options.timeout);
  } catch (const std::exception&) {
    std::string missing = "unknown";
    try {
      missing = absl::StrJoin(missing_ranks(*store, options.world_size), ", ");
    } catch (const std::exception&) { // rank 0, which serves the store, is gone
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "at ", place, ": after ", options.timeout.count() / 1000, " s these ranks had not arrived: ", missing,
        "; check that they were started with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE"));
  }
  return std::make_unique<StoreRendezvous>(std::move(store), options);
}

} // namespace distill::sharding
