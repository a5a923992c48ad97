#include "trainer/report/step_series.h"

#include <absl/strings/match.h>

#include <cstdlib>

namespace distill::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPhases = "phase_seconds";
constexpr const char* kTeacherRead = "teacher_read";
constexpr const char* kTeachers = "teachers"; // of several, each one's means by its name

// Numbers of a record that are no metrics: its place, and when it was written.
bool is_place(const std::string& name) {
  return name == "step" || name == "tokens" || name == "time_ms";
}

bool is_value(const Json& value) {
  return value.is_number() || value.is_boolean();
}

double number_of(const Json& value) {
  return value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<double>();
}

// Six significant digits: a shorter text, and more than a chart shows.
Json rounded(double value) {
  return std::isfinite(value) ? Json(std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr)) : Json(nullptr);
}

int64_t integer(const Json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

} // namespace

void StepSeries::Value::add(double value) {
  add(Value{value, value, value, 1});
}

void StepSeries::Value::add(const Value& other) {
  if (other.count == 0) {
    return;
  }
  min = count == 0 ? other.min : std::min(min, other.min);
  max = count == 0 ? other.max : std::max(max, other.max);
  sum += other.sum;
  count += other.count;
}

// The records of a file have the same names in the same order, so that the next name is where `hint` points.
size_t StepSeries::index_of(const std::string& name, size_t& hint) {
  if (hint >= names_.size() || names_[hint] != name) {
    hint = static_cast<size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
    if (hint == names_.size()) {
      names_.push_back(name);
    }
  }
  return hint++;
}

void StepSeries::add_values(const Json& object, const std::string& prefix, size_t& hint) {
  std::vector<Value>& values = points_.back().values;
  for (auto it = object.begin(); it != object.end(); ++it) {
    if (prefix.empty() && (it.key() == kPhases || it.key() == kTeacherRead) && it->is_object()) {
      add_values(*it, absl::StrCat(it.key(), "."), hint);
    } else if (prefix.empty() && it.key() == kTeachers && it->is_object()) {
      for (const auto& [name, means] : it->items()) {
        if (means.is_object()) {
          add_values(means, absl::StrCat(kTeachers, ".", name, "."), hint);
        }
      }
    } else if ((is_value(*it) || it->is_null()) && (!prefix.empty() || !is_place(it.key()))) {
      const size_t index = prefix.empty() ? index_of(it.key(), hint) : index_of(prefix + it.key(), hint);
      values.resize(std::max(values.size(), names_.size()));
      if (!it->is_null()) {
        values[index].add(number_of(*it));
      }
    }
  }
}

void StepSeries::add(int64_t step, const Json& record) {
  if (points_.empty() || points_.back().steps == steps_a_point_) {
    if (points_.size() == most_points_) {
      halve();
    }
    if (points_.empty() || points_.back().steps == steps_a_point_) {
      points_.emplace_back();
    }
  }
  const auto seconds = record.find("seconds");
  seconds_ += seconds != record.end() && seconds->is_number() ? seconds->get<double>() : 0;
  steps_ += 1;
  Point& point = points_.back();
  point.step = step;
  point.tokens = integer(record, "tokens");
  point.seconds = seconds_;
  point.steps += 1;
  size_t hint = 0;
  add_values(record, "", hint);
}

// Neighbours become one point.
void StepSeries::halve() {
  std::vector<Point> halved;
  for (size_t i = 0; i < points_.size(); i += 2) {
    Point point = std::move(points_[i]);
    if (i + 1 < points_.size()) {
      const Point& next = points_[i + 1];
      point.step = next.step;
      point.tokens = next.tokens;
      point.seconds = next.seconds;
      point.steps += next.steps;
      point.values.resize(std::max(point.values.size(), next.values.size()));
      for (size_t v = 0; v < next.values.size(); ++v) {
        point.values[v].add(next.values[v]);
      }
    }
    halved.push_back(std::move(point));
  }
  points_ = std::move(halved);
  steps_a_point_ *= 2;
}

Json StepSeries::json() const {
  Json all;
  Json& x = all["x"];
  for (const char* axis : {"step", "tokens", "seconds"}) {
    x[axis] = Json::array();
  }
  for (const Point& point : points_) {
    x["step"].push_back(point.step);
    x["tokens"].push_back(point.tokens);
    x["seconds"].push_back(rounded(point.seconds));
  }
  Json& series = all["series"] = Json::object();
  for (size_t index = 0; index < names_.size(); ++index) {
    Json& own = series[names_[index]] = {{"mean", Json::array()}};
    const bool has_range = steps_a_point_ > 1 && !absl::StartsWith(names_[index], kPhases);
    for (const Point& point : points_) {
      const Value value = index < point.values.size() ? point.values[index] : Value{};
      const bool known = value.count > 0;
      own["mean"].push_back(known ? rounded(value.sum / static_cast<double>(value.count)) : Json(nullptr));
      if (has_range) {
        own["min"].push_back(known ? rounded(value.min) : Json(nullptr));
        own["max"].push_back(known ? rounded(value.max) : Json(nullptr));
      }
    }
  }
  return all;
}

} // namespace distill::report
