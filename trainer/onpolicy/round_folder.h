#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

// The folder of a round, RUN/onpolicy/round-00003 (docs/onpolicy.md). round.json says what was asked for, and, once all
// is there, what came of it; a folder without that is a round that is being written.
namespace distill::onpolicy {

inline constexpr const char* kRoundsFolder = "onpolicy"; // in the run folder
inline constexpr const char* kRoundFile = "round.json";
inline constexpr const char* kRequestsFile = "requests.jsonl"; // for the engine: what is still missing
inline constexpr const char* kOutputFile = "output.jsonl"; // the engine's
inline constexpr const char* kLogFile = "engine.log"; // what the engine prints
inline constexpr const char* kCompletionsFile = "completions.jsonl"; // those that are good, by id
// With a teacher that has a tokenizer of its own: what onpolicy.retokenize is asked, writes and prints.
inline constexpr const char* kRetokenizeFile = "retokenize.jsonl";
inline constexpr const char* kRetokenizedFile = "retokenized.jsonl";
inline constexpr const char* kRetokenizeLogFile = "retokenize.log";
inline constexpr const char* kHeldOutFolder = "held_out"; // with shards (round_shards.h) of held-out prompts
inline constexpr const char* kJudgedFile = "judged.json"; // what student and teacher say of it (judgement.h)

// Members of a round's result.
inline constexpr const char* kJudgedKey = "judged"; // the means over the judged tokens
inline constexpr const char* kJudgedChecksumKey = "xxh3"; // in it: of kJudgedFile
inline constexpr const char* kHeldOutKey = "held_out"; // numbers of the held-out completions, if there are some
inline constexpr const char* kSecondsKey = "seconds"; // of each part of the round

class RoundFolder {
 public:
  RoundFolder(const std::string& run_dir, int64_t number);

  const std::string& path() const {
    return path_;
  }
  std::string file(const char* name) const {
    return path_ + "/" + name;
  }
  std::string absolute_file(const char* name) const; // for commands

  // Goes on with the folder if it is of this request, and begins it anew otherwise; what was there is then renamed, and
  // `set_aside` says where to. `request`: a JSON object with all that decides what the round is.
  absl::Status begin(const nlohmann::ordered_json& request, std::string& set_aside) const;
  // Renames the folder, and returns its new name.
  absl::StatusOr<std::string> set_aside() const;
  // The request and the result of the round. NotFound: there is no such round, or it is not complete. DataLoss: the
  // file is damaged.
  struct Contents {
    nlohmann::ordered_json request, result;
  };
  absl::StatusOr<Contents> read_complete() const;
  // The request alone, of a round that need not be complete.
  absl::StatusOr<nlohmann::ordered_json> read_request() const;
  // Adds the result: the round is complete.
  absl::Status complete(const nlohmann::ordered_json& request, const nlohmann::ordered_json& result) const;
  // Of a complete round: writes kJudgedFile, and merges `more`, in which kJudgedKey gets the file's checksum, into the
  // result.
  absl::Status add_judgement(const nlohmann::ordered_json& judged, const nlohmann::ordered_json& more) const;
  // The content of kJudgedFile. NotFound: the round was not judged. DataLoss: it is not the file that was written.
  absl::StatusOr<nlohmann::ordered_json> read_judged() const;

 private:
  absl::StatusOr<nlohmann::ordered_json> read() const;

  std::string path_;
};

// The numbers of the run's complete rounds, ascending.
std::vector<int64_t> complete_rounds(const std::string& run_dir);

// Removes the oldest rounds, so that `keep` of those up to `newest` are left, but none that ends after `step`: a
// checkpoint of that step is resumed in it. Returns the folders that were removed.
std::vector<std::string> remove_old_rounds(const std::string& run_dir, int64_t newest, int64_t keep, int64_t step);

} // namespace distill::onpolicy
