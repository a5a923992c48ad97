#pragma once

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "data/base/problem_list.h"
#include "trainer/hf/notes.h"

namespace distill::hf {

// Reads the keys of a config.json, remembers which ones were asked for, and collects problems and notes, which begin
// with the file's name. A value that does not fit is a problem, and a valid one takes its place.
class KeyReader {
 public:
  using Json = nlohmann::ordered_json;

  // `notes`: null: not wanted.
  KeyReader(Json json, std::string source, Notes* notes)
      : json_(std::move(json)), source_(std::move(source)), notes_(notes) {}

  const Json& json() const {
    return json_;
  }
  const base::ProblemList& problems() const {
    return problems_;
  }
  // Gives the keys that the file does not have these values.
  void add_defaults(const Json& defaults) {
    for (const auto& [key, value] : defaults.items()) {
      if (!json_.contains(key)) {
        json_[key] = value;
        defaults_.insert(key);
      }
    }
  }
  bool is_default(const std::string& key) const {
    return defaults_.contains(key);
  }
  // Tells whether the key was taken.
  bool is_known(const std::string& key) const {
    return known_.contains(key);
  }

  template <typename... Args>
  void note(const Args&... args) {
    if (notes_ != nullptr) {
      notes_->push_back({absl::StrCat(source_, ": ", args...), /*is_warning=*/true});
    }
  }
  // A note about what is as it should be.
  template <typename... Args>
  void inform(const Args&... args) {
    if (notes_ != nullptr) {
      notes_->push_back({absl::StrCat(source_, ": ", args...), /*is_warning=*/false});
    }
  }

  template <typename... Args>
  void complain(const Args&... args) {
    problems_.add(absl::StrCat(source_, ": ", args...));
  }

  // The value as JSON, cut where it is long.
  static std::string text(const Json& value) {
    std::string dumped = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (dumped.size() > 100) {
      dumped.replace(100, std::string::npos, "...");
    }
    return dumped;
  }

  // The value; null where the key is absent or its value is null.
  static const Json* take(const Json& object, const std::string& key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  const Json* take(const std::string& key) {
    known_.insert(key);
    return take(json_, key);
  }

  std::optional<int64_t> as_integer(const std::string& key, const Json& value, int64_t low, int64_t high) {
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(high)) {
      complain(key, ": an integer in [", low, ", ", high, "] is expected, found ", text(value));
      return std::nullopt;
    }
    if (!value.is_number_integer() || value.get<int64_t>() < low || value.get<int64_t>() > high) {
      complain(key, ": an integer in [", low, ", ", high, "] is expected, found ", text(value));
      return std::nullopt;
    }
    return value.get<int64_t>();
  }

  std::optional<int64_t> optional_integer(const std::string& key, int64_t low, int64_t high) {
    const Json* value = take(key);
    return value ? as_integer(key, *value, low, high) : std::nullopt;
  }

  int64_t required_integer(const std::string& key, int64_t high) {
    const Json* value = take(key);
    if (value == nullptr) {
      complain(key, ": missing; an integer in [1, ", high, "] is expected");
      return 1;
    }
    return as_integer(key, *value, 1, high).value_or(1);
  }

  // A finite number in (low, high].
  double number(const std::string& key, const Json& value, double low, double high, double fallback) {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= low ||
        value.get<double>() > high) {
      complain(key, ": a number above ", low, " and at most ", high, " is expected, found ", text(value));
      return fallback;
    }
    return value.get<double>();
  }

  bool boolean(const std::string& key, bool fallback) {
    const Json* value = take(key);
    if (value != nullptr && !value->is_boolean()) {
      complain(key, ": true or false is expected, found ", text(*value));
      return fallback;
    }
    return value ? value->get<bool>() : fallback;
  }

 private:
  Json json_;
  std::string source_;
  Notes* notes_;
  absl::flat_hash_set<std::string> known_;
  absl::flat_hash_set<std::string> defaults_;
  base::ProblemList problems_;
};

} // namespace distill::hf
