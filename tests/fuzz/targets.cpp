#include "tests/fuzz/targets.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "data/sha256.h"
#include "data/shard.h"
#include "data/tokenizer.h"
#include "trainer/checkpoint/index.h"
#include "trainer/config/dump.h"
#include "trainer/config/reader.h"
#include "trainer/models/layout.h"
#include "trainer/models/model_config.h"
#include "trainer/models/safetensors.h"

namespace distill::fuzz {
namespace {

std::string_view text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// The bytes as a file in memory, for readers that map one. One at a time.
std::string file_with(const uint8_t* data, size_t size) {
  static const std::string path = [] {
    const char* folder = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    return absl::StrCat(folder, "/", kSource, "-", ::getpid());
  }();
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  TORCH_CHECK(fd >= 0 && ::write(fd, data, size) == static_cast<ssize_t>(size), path, ": cannot write");
  ::close(fd);
  static const struct Remove {
    ~Remove() {
      ::unlink(path.c_str());
    }
  } remove_at_exit;
  return path;
}

} // namespace

absl::Status read_config_yaml(const uint8_t* data, size_t size) {
  const config::ReadResult result = config::read(text(data, size), kSource, {});
  if (!result.problems.empty()) {
    return absl::InvalidArgumentError(config::report(result.problems));
  }
  const config::ReadResult again = config::read(config::dump(result.config), kSource, {});
  TORCH_CHECK(again.problems.empty(), "a configuration that was read does not read back from its own dump");
  return absl::OkStatus();
}

absl::Status read_safetensors_header(const uint8_t* data, size_t size) {
  const auto header = models::parse_safetensors_header(text(data, size), static_cast<int64_t>(size), kSource);
  if (!header.ok()) {
    return header.status();
  }
  for (const auto& [name, tensor] : header->tensors) {
    const bool inside = tensor.begin >= 0 && tensor.end >= tensor.begin &&
        header->data_begin + tensor.end <= static_cast<int64_t>(size) && tensor.numel() >= 0;
    TORCH_CHECK(inside, "a tensor that was accepted lies outside of its file");
  }
  return absl::OkStatus();
}

absl::Status read_token_shard(const uint8_t* data, size_t size) {
  // The header's own hash stops nearly every change; with the hash made to fit, what stands behind it is reached.
  std::vector<uint8_t> bytes(data, data + size);
  constexpr size_t kHashed = 224, kHash = 32;
  if (size >= kHashed + kHash && size % 2 == 1) { // the corpus' shard has an odd size
    data::Sha256 hash;
    hash.update(bytes.data(), kHashed);
    const data::Digest digest = hash.finish();
    std::memcpy(bytes.data() + kHashed, digest.data(), kHash);
  }
  const auto shard = data::Shard::open(file_with(bytes.data(), bytes.size()));
  if (!shard.ok()) {
    return shard.status();
  }
  for (int64_t document = 0; document < shard->documents(); ++document) {
    std::vector<int64_t> tokens(static_cast<size_t>(shard->document_length(document)));
    shard->read_tokens(shard->document_begin(document), absl::MakeSpan(tokens)).IgnoreError();
    for (size_t i = 0; i < tokens.size(); ++i) {
      (void)shard->in_loss(shard->document_begin(document) + static_cast<int64_t>(i));
    }
  }
  return shard->verify();
}

absl::Status read_checkpoint_index(const uint8_t* data, size_t size) {
  const auto index = checkpoint::parse_index(text(data, size), kSource);
  if (!index.ok()) {
    return index.status();
  }
  for (const checkpoint::ShardFile& file : index->files) {
    TORCH_CHECK(file.name.find('/') == std::string::npos && file.name != "..", "a file outside of the folder");
  }
  TORCH_CHECK(checkpoint::parse_index(checkpoint::to_json(*index), kSource).ok(), "an index does not read back");
  return absl::OkStatus();
}

absl::Status read_tokenizer_json(const uint8_t* data, size_t size) {
  const auto tokenizer = data::read_tokenizer(file_with(data, size));
  if (tokenizer.ok()) {
    (void)tokenizer->hash();
    return data::compare_tokenizers(*tokenizer, *tokenizer);
  }
  return tokenizer.status();
}

absl::Status read_model_config(const uint8_t* data, size_t size) {
  const auto config = models::parse_model_config(std::string(text(data, size)), kSource);
  if (config.ok() && config->num_layers <= 1000) {
    (void)models::parameter_count(models::unit_layouts(*config));
  }
  return config.status();
}

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {"config_yaml", read_config_yaml},       {"safetensors_header", read_safetensors_header},
      {"token_shard", read_token_shard},       {"checkpoint_index", read_checkpoint_index},
      {"tokenizer_json", read_tokenizer_json}, {"model_config", read_model_config}};
  return all;
}

} // namespace distill::fuzz
