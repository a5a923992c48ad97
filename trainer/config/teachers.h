#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/field.h"
#include "trainer/config/reader.h"

// Several teachers. Each is described by what it changes in the configuration: a run with one of them alone is the
// run's configuration with these keys, and everything that concerns one teacher reads that one.
namespace distill::config {

// The key that a key of an entry of `teachers` stands for, `path` for teacher.path and `loss.beta` for itself; empty:
// a teacher has no such key. A key of an inner mapping is written with its section, as `loss.beta` and `cache.kind`;
// `cache.path` is teacher.cache.
std::string key_of_teacher(const std::string& key);
// The keys that a teacher may have, for messages.
std::string keys_of_teachers();

// The configuration of a run with this teacher alone; its this_teacher is the number.
Config config_of_teacher(const Config& config, size_t number);
// Of each of the run's teachers, in their order. A configuration without `teachers` is returned itself: the run has the
// one of the section `teacher`, or none.
std::vector<Config> configs_of_teachers(const Config& config);

// "teacher", or of several "teacher math", for messages. `config`: that of the teacher.
std::string text_of_teacher(const Config& config);
// Names the teacher, of several, that an error is about. `config`: that of the teacher.
absl::Status of_teacher(const Config& config, const absl::Status& status);

// A model that a run reads, and the key of its section in messages: "student", "teacher", "teachers[1] (math) teacher".
struct ModelOfRun {
  std::string name;
  ModelSection section;
};
std::vector<ModelOfRun> models_of_run(const Config& config);

// The share of each teacher in the sequences of data.train, as far as the configuration says: data sets whose documents
// name their teachers count for all of them alike. Their sum is 1.
std::vector<double> shares_of_teachers(const Config& config);

// Whether a key has an effect in the run: with one of its teachers at least.
bool applies_to_run(const Field& field, const Config& config);

// Where the keys that a teacher has given are, `file` being that of `teachers`.
Origins origins_of_teacher(const NamedTeacher& teacher, const std::string& file);

} // namespace distill::config
