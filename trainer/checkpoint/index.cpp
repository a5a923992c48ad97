#include "trainer/checkpoint/index.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "data/base/checksum.h"
#include "data/base/json.h"
#include "trainer/config/reader.h"

namespace distill::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "distill-checkpoint";
constexpr int kMaxDepth = 8;
constexpr int64_t kMaxElements = int64_t{1} << 50;
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxSeqLen = 1 << 26; // data.seq_len's limit

// The members of TrainState that the index holds as integers.
struct StateKey {
  const char* name;
  int64_t TrainState::*member;
  int64_t least;
  bool optional = false; // older versions of the program do not write it
};
constexpr StateKey kStateKeys[] = {
    {"step", &TrainState::step, 0},
    {"samples", &TrainState::samples, 0},
    {"tokens", &TrainState::tokens, 0},
    {"skipped_total", &TrainState::skipped_total, 0},
    {"skipped_in_row", &TrainState::skipped_in_row, 0},
    {"empty_steps", &TrainState::empty_steps, 0, /*optional=*/true},
    {"train_samples", &TrainState::train_samples, 0, /*optional=*/true},
    {"evaluated_step", &TrainState::evaluated_step, -1}};

// Reads members of JSON that is not trusted, and remembers the first error.
class Reader {
 public:
  explicit Reader(const std::string& source) : source_(source) {}

  const absl::Status& status() const {
    return status_;
  }
  void fail(const std::string& where, const std::string& what) {
    if (status_.ok()) {
      status_ = absl::DataLossError(absl::StrCat(source_, ": ", where, ": ", what));
    }
  }

  int64_t integer(const Json& object, const std::string& where, const char* key, int64_t least, int64_t most) {
    const Json* value = member(object, where, key);
    if (value == nullptr) {
      return least;
    }
    const bool fits = value->is_number_integer() &&
        !(value->is_number_unsigned() &&
          value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most) {
      fail(where + key, absl::StrCat("expected an integer from ", least, " to ", most, ", found ", brief(*value)));
      return least;
    }
    return value->get<int64_t>();
  }

  std::string text(const Json& object, const std::string& where, const char* key) {
    const Json* value = member(object, where, key);
    if (value == nullptr) {
      return "";
    }
    if (!value->is_string()) {
      fail(where + key, "expected a text, found " + brief(*value));
      return "";
    }
    return value->get<std::string>();
  }

  // The elements of a list; empty after an error.
  const Json& list(const Json& object, const std::string& where, const char* key) {
    static const Json empty = Json::array();
    const Json* value = member(object, where, key);
    if (value != nullptr && !value->is_array()) {
      fail(where + key, "expected a list, found " + brief(*value));
      return empty;
    }
    return value == nullptr ? empty : *value;
  }

  static std::string brief(const Json& value) {
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 60) + "..." : text;
  }

 private:
  const Json* member(const Json& object, const std::string& where, const char* key) {
    if (!object.is_object()) {
      fail(where, "expected an object, found " + brief(object));
      return nullptr;
    }
    const auto it = object.find(key);
    if (it == object.end()) {
      fail(where + key, "is missing");
      return nullptr;
    }
    return &*it;
  }

  std::string source_;
  absl::Status status_;
};

DataIdentity read_data(const Json& object, const std::string& where, Reader& reader) {
  DataIdentity data{reader.text(object, where, "data")};
  if (!object.contains("data_sets")) { // written by a program before 0.9
    return data;
  }
  for (const Json& entry : reader.list(object, where, "data_sets")) {
    const std::string place = absl::StrCat(where, "data_sets[", data.sets.size(), "].");
    DataSetSize set;
    set.path = reader.text(entry, place, "path");
    set.documents = reader.integer(entry, place, "documents", 0, kMaxElements);
    set.tokens = reader.integer(entry, place, "tokens", 0, kMaxElements);
    data.sets.push_back(std::move(set));
  }
  return data;
}

constexpr const char* kHeldOut = "held_out"; // absent: 0

struct RoundKey {
  const char* name;
  int64_t RoundPosition::*member;
};
constexpr RoundKey kRoundKeys[] = {
    {"number", &RoundPosition::number},
    {"first_step", &RoundPosition::first_step},
    {"steps", &RoundPosition::steps},
    {"sequences", &RoundPosition::sequences},
    {"first_prompt", &RoundPosition::first_prompt},
    {"prompts", &RoundPosition::prompts}};

// A checkpoint that was saved before the first round of on-policy data has no `round`.
RoundPosition read_round(const Json& index, Reader& reader) {
  RoundPosition round;
  const auto found = index.find("round");
  if (found == index.end()) {
    return round;
  }
  for (const RoundKey& key : kRoundKeys) {
    round.*key.member = reader.integer(*found, "round.", key.name, 0, kMaxElements);
  }
  round.data = reader.text(*found, "round.", "data");
  if (found->contains(kHeldOut)) {
    round.held_out = reader.integer(*found, "round.", kHeldOut, 0, kMaxElements);
  }
  return round;
}

Json round_json(const RoundPosition& round) {
  Json json;
  for (const RoundKey& key : kRoundKeys) {
    json[key.name] = round.*key.member;
  }
  json["data"] = round.data;
  if (round.held_out > 0) {
    json[kHeldOut] = round.held_out;
  }
  return json;
}

Json sets_json(const std::vector<DataSetSize>& sets) {
  Json json = Json::array();
  for (const DataSetSize& set : sets) {
    json.push_back({{"path", set.path}, {"documents", set.documents}, {"tokens", set.tokens}});
  }
  return json;
}

std::vector<Unit> read_units(const Json& index, Reader& reader) {
  std::vector<Unit> units;
  for (const Json& entry : reader.list(index, "", "units")) {
    const std::string where = absl::StrCat("units[", units.size(), "].");
    Unit unit;
    unit.name = reader.text(entry, where, "name");
    unit.numel = reader.integer(entry, where, "numel", 0, kMaxElements); // 0: nothing of it is trained
    for (const Json& param_entry : reader.list(entry, where, "params")) {
      const std::string param_where = absl::StrCat(where, "params[", unit.params.size(), "].");
      Param param;
      param.name = reader.text(param_entry, param_where, "name");
      param.offset = reader.integer(param_entry, param_where, "offset", 0, kMaxElements);
      for (const Json& size : reader.list(param_entry, param_where, "shape")) {
        param.shape.push_back(size.is_number_integer() ? size.get<int64_t>() : -1);
      }
      unit.params.push_back(std::move(param));
    }
    units.push_back(std::move(unit));
  }
  return units;
}

// The stages of the training data: at least one, the first from the start of the run, none later than the state.
std::vector<DataStage> read_stages(const Json& index, Reader& reader, const TrainState& state) {
  std::vector<DataStage> stages;
  for (const Json& entry : reader.list(index, "", "data_stages")) {
    const std::string where = absl::StrCat("data_stages[", stages.size(), "].");
    const bool first = stages.empty();
    DataStage stage;
    stage.step = reader.integer(entry, where, "step", first ? 0 : stages.back().step + 1, first ? 0 : state.step);
    stage.first_sample = reader.integer(
        entry, where, "first_sample", first ? 0 : stages.back().first_sample + 1, first ? 0 : state.samples);
    stage.seq_len = reader.integer(entry, where, "seq_len", 2, kMaxSeqLen);
    if (entry.contains("teacher_seq_len")) { // only with a teacher stream
      stage.teacher_seq_len = reader.integer(entry, where, "teacher_seq_len", 2, kMaxSeqLen);
    }
    const std::string packing = reader.text(entry, where, "packing");
    if (const auto mode = base::enum_named<data::PackingMode>(packing)) {
      stage.packing = *mode;
    } else {
      reader.fail(
          where + "packing",
          absl::StrCat("expected ", base::enum_choices<data::PackingMode>(), ", found ", Reader::brief(packing)));
    }
    if (entry.contains("data")) { // only where the next stage has other data
      stage.data = read_data(entry, where, reader);
    }
    stages.push_back(stage);
  }
  if (stages.empty()) {
    reader.fail("data_stages", "expected at least one");
  }
  return stages;
}

// The stage of a checkpoint without data_stages: the length and packing of its configuration.
DataStage only_stage(const std::string& config) {
  const config::DataSection data = config::read(config, "config", {}).config.data;
  return {0, 0, data.seq_len, data.packing};
}

// Whether this is the name of a file in the folder of the index, without a path.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.size() <= 255 &&
      std::all_of(
          name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '.'; });
}

void read_ranges(const Json& entry, const std::string& where, Reader& reader, ShardFile& file) {
  for (const Json& range : reader.list(entry, where, "ranges")) {
    const bool pair = range.is_array() && range.size() == 2 && range[0].is_number_unsigned() &&
        range[1].is_number_unsigned() && range[0].get<uint64_t>() <= static_cast<uint64_t>(kMaxElements) &&
        range[1].get<uint64_t>() <= static_cast<uint64_t>(kMaxElements);
    if (!pair) {
      reader.fail(where + "ranges", "expected pairs of first element and count, found " + Reader::brief(range));
      return;
    }
    file.ranges.push_back({range[0].get<int64_t>(), range[1].get<int64_t>()});
  }
}

void read_sums(const Json& entry, const std::string& where, Reader& reader, ShardFile& file) {
  for (const Json& sum : reader.list(entry, where, "xxh3")) {
    const auto value = sum.is_string() ? base::parse_checksum(sum.get_ref<const std::string&>()) : std::nullopt;
    if (!value) {
      reader.fail(where + "xxh3", "expected 16 hexadecimal digits, found " + Reader::brief(sum));
      return;
    }
    file.block_sums.push_back(*value);
  }
  const int64_t blocks = (file.bytes + kBlockBytes - 1) / kBlockBytes;
  if (static_cast<int64_t>(file.block_sums.size()) != blocks) {
    reader.fail(
        where + "xxh3",
        absl::StrCat(
            "expected ", blocks, " checksums for ", file.bytes, " bytes in blocks of ", kBlockBytes, ", found ",
            file.block_sums.size()));
  }
}

std::vector<ShardFile> read_files(const Json& index, Reader& reader) {
  std::vector<ShardFile> files;
  for (const Json& entry : reader.list(index, "", "files")) {
    const std::string where = absl::StrCat("files[", files.size(), "].");
    ShardFile file;
    file.name = reader.text(entry, where, "name");
    if (reader.status().ok() && !is_plain_name(file.name)) {
      reader.fail(where + "name", "expected the name of a file in this folder, found " + Reader::brief(file.name));
    }
    file.bytes = reader.integer(entry, where, "bytes", 1, std::numeric_limits<int64_t>::max() - kBlockBytes);
    reader.integer(entry, where, "block_bytes", kBlockBytes, kBlockBytes);
    read_ranges(entry, where, reader, file);
    read_sums(entry, where, reader, file);
    files.push_back(std::move(file));
  }
  return files;
}

// Checks that the files' ranges, in order, cover every unit from its first element to its last.
void check_coverage(const Index& index, Reader& reader) {
  if (static_cast<int64_t>(index.files.size()) != index.shard) {
    reader.fail("files", absl::StrCat("expected one for each of ", index.shard, " ranks, found ", index.files.size()));
    return;
  }
  for (const ShardFile& file : index.files) {
    if (file.ranges.size() != index.units.size()) {
      reader.fail(
          absl::StrCat("ranges of ", file.name),
          absl::StrCat("expected one for each of ", index.units.size(), " units, found ", file.ranges.size()));
      return;
    }
  }
  for (size_t unit = 0; unit < index.units.size(); ++unit) {
    int64_t next = 0;
    for (const ShardFile& file : index.files) {
      const Range& range = file.ranges[unit];
      if (range.begin != next) {
        reader.fail(
            absl::StrCat("ranges of ", file.name, ", unit ", index.units[unit].name),
            absl::StrCat("expected to begin at element ", next, ", found ", range.begin));
        return;
      }
      next += range.numel;
    }
    if (next < index.units[unit].numel) {
      reader.fail(
          absl::StrCat("unit ", index.units[unit].name),
          absl::StrCat(index.units[unit].numel, " elements, but the files hold ", next));
      return;
    }
  }
}

} // namespace

std::vector<Unit> describe_units(const std::vector<models::UnitLayout>& layouts) {
  std::vector<Unit> units;
  for (const models::UnitLayout& layout : layouts) {
    Unit unit{layout.name, layout.numel, {}};
    for (const models::ParamLayout& param : layout.params) {
      unit.params.push_back({param.name, param.offset, param.shape});
    }
    units.push_back(std::move(unit));
  }
  return units;
}

std::string to_json(const Index& index) {
  Json json{{"format", kFormat}, {"version", index.version}, {"program", index.info.program}};
  for (const StateKey& key : kStateKeys) {
    json[key.name] = index.state.*key.member;
  }
  if (index.state.round.begun()) {
    json["round"] = round_json(index.state.round);
  }
  if (index.version > kOldestVersion) {
    json["data_stages"] = Json::array();
    for (const DataStage& stage : index.state.data_stages) {
      Json entry = {
          {"step", stage.step},
          {"first_sample", stage.first_sample},
          {"seq_len", stage.seq_len},
          {"packing", base::enum_name(stage.packing)}};
      if (stage.teacher_seq_len > 0) {
        entry["teacher_seq_len"] = stage.teacher_seq_len;
      }
      if (!stage.data.text.empty() && &stage != &index.state.data_stages.back()) {
        entry["data"] = stage.data.text;
        entry["data_sets"] = sets_json(stage.data.sets);
      }
      json["data_stages"].push_back(std::move(entry));
    }
  }
  json["model"] = index.info.identity.model;
  json["optimizer"] = index.info.identity.optimizer;
  const DataIdentity data = index.state.data_stages.empty() ? DataIdentity() : index.state.data_stages.back().data;
  json["data"] = data.text;
  json["tokenizer"] = index.info.identity.tokenizer;
  json["data_sets"] = sets_json(data.sets);
  json["student_folder"] = index.info.student_folder;
  json["model_files"] = index.info.model_files;
  json["layout"] = {{"shard", index.shard}, {"replicate", index.replicate}};
  json["units"] = Json::array();
  for (const Unit& unit : index.units) {
    Json params = Json::array();
    for (const Param& param : unit.params) {
      params.push_back({{"name", param.name}, {"offset", param.offset}, {"shape", param.shape}});
    }
    json["units"].push_back({{"name", unit.name}, {"numel", unit.numel}, {"params", params}});
  }
  json["files"] = Json::array();
  for (const ShardFile& file : index.files) {
    Json ranges = Json::array(), sums = Json::array();
    for (const Range& range : file.ranges) {
      ranges.push_back({range.begin, range.numel});
    }
    for (const uint64_t sum : file.block_sums) {
      sums.push_back(base::checksum_text(sum));
    }
    json["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"ranges", ranges}, {"block_bytes", kBlockBytes}, {"xxh3", sums}});
  }
  json["config"] = index.info.config;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Index> parse_index(std::string_view text, const std::string& source) {
  const auto json = base::parse_json(text, source, kMaxDepth);
  if (!json.ok()) {
    return absl::DataLossError(json.status().message());
  }
  Reader reader(source);
  if (reader.text(*json, "", "format") != kFormat) {
    return absl::DataLossError(absl::StrCat(source, ": not the index of a distill checkpoint"));
  }
  const int64_t version = reader.integer(*json, "", "version", 0, std::numeric_limits<int64_t>::max());
  if (reader.status().ok() && (version < kOldestVersion || version > kFormatVersion)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: checkpoint format version %d; this program reads versions %d to %d", source, version, kOldestVersion,
        kFormatVersion));
  }
  Index index;
  index.version = version;
  for (const StateKey& key : kStateKeys) {
    if (key.optional && !json->contains(key.name)) {
      continue;
    }
    index.state.*key.member = reader.integer(*json, "", key.name, key.least, std::numeric_limits<int64_t>::max() / 2);
  }
  if (!json->contains("train_samples")) { // written by a program without on-policy data
    index.state.train_samples = index.state.samples;
  }
  index.state.round = read_round(*json, reader);
  index.info.program = reader.text(*json, "", "program");
  index.info.identity.model = reader.text(*json, "", "model");
  index.info.identity.optimizer = reader.text(*json, "", "optimizer");
  index.info.identity.tokenizer = reader.text(*json, "", "tokenizer");
  index.info.student_folder = reader.text(*json, "", "student_folder");
  if (const auto files = json->find("model_files"); files != json->end()) {
    for (const auto& [key, hash] : files->items()) {
      index.info.model_files[key] = reader.text(*files, "model_files.", key.c_str());
    }
  }
  index.info.config = reader.text(*json, "", "config");
  index.state.data_stages = version > kOldestVersion ? read_stages(*json, reader, index.state)
                                                     : std::vector<DataStage>{only_stage(index.info.config)};
  if (!index.state.data_stages.empty()) {
    index.state.data_stages.back().data = read_data(*json, "", reader);
  }
  if (const auto layout = json->find("layout"); layout != json->end()) {
    index.shard = reader.integer(*layout, "layout.", "shard", 1, kMaxRanks);
    index.replicate = reader.integer(*layout, "layout.", "replicate", 1, kMaxRanks);
  } else {
    reader.fail("layout", "is missing");
  }
  index.units = read_units(*json, reader);
  index.files = read_files(*json, reader);
  if (reader.status().ok()) {
    check_coverage(index, reader);
  }
  if (!reader.status().ok()) {
    return reader.status();
  }
  return index;
}

} // namespace distill::checkpoint
