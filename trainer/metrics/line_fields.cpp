#include "trainer/metrics/line_fields.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>

namespace distill::metrics {
namespace {

constexpr const char* kGap = "  ";
constexpr const char* kBriefGap = " ";
constexpr int kBarPriority = kAlwaysShown + 2;
constexpr int64_t kWideColumns = 120;

// The form of each field that is chosen so far; null: the field is left out.
class Choice {
 public:
  Choice(const std::vector<LineField>& fields, int64_t columns)
      : fields_(fields), columns_(columns), texts_(fields.size(), nullptr) {
    for (size_t i = 0; i < fields.size(); ++i) {
      by_priority_.push_back(i);
    }
    std::stable_sort(by_priority_.begin(), by_priority_.end(), [&](size_t a, size_t b) {
      return fields[a].priority < fields[b].priority;
    });
    if (!choose_required(/*brief=*/false)) {
      gap_ = kBriefGap;
      choose_required(/*brief=*/true);
    }
    for (const size_t i : by_priority_) {
      if (texts_[i] == nullptr && fields[i].priority > kAlwaysShown && !try_text(i, fields[i].text)) {
        try_text(i, brief_of(i));
      }
    }
  }

  std::string line(bool colour) const {
    std::string line;
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (texts_[i] != nullptr) {
        absl::StrAppend(
            &line, line.empty() ? "" : gap_, coloured(*texts_[i], colour ? fields_[i].colour : Colour::kNone));
      }
    }
    // A single field that is too long is cut; it has no colour then.
    return width() > columns_ ? line.substr(0, static_cast<size_t>(std::max<int64_t>(0, columns_))) : line;
  }

 private:
  const std::string& brief_of(size_t i) const {
    return fields_[i].brief.empty() ? fields_[i].text : fields_[i].brief;
  }

  int64_t width() const {
    size_t sum = 0, count = 0;
    for (const std::string* text : texts_) {
      if (text != nullptr) {
        sum += text->size() + (count++ > 0 ? std::string_view(gap_).size() : 0);
      }
    }
    return static_cast<int64_t>(sum);
  }

  bool try_text(size_t i, const std::string& text) {
    texts_[i] = &text;
    if (width() > columns_) {
      texts_[i] = nullptr;
      return false;
    }
    return true;
  }

  // Chooses the fields that are always shown, and tells whether all of them fit. If `brief`, those with the lowest
  // priorities are chosen, at least one.
  bool choose_required(bool brief) {
    std::fill(texts_.begin(), texts_.end(), nullptr);
    bool first = true;
    for (const size_t i : by_priority_) {
      if (fields_[i].priority > kAlwaysShown) {
        break;
      }
      const std::string& text = brief ? brief_of(i) : fields_[i].text;
      if (!try_text(i, text)) {
        if (brief && first) {
          texts_[i] = &text;
        }
        return false;
      }
      first = false;
    }
    return true;
  }

  const std::vector<LineField>& fields_;
  int64_t columns_;
  const char* gap_ = kGap;
  std::vector<const std::string*> texts_;
  std::vector<size_t> by_priority_;
};

int64_t whole_seconds(double seconds) {
  return std::isfinite(seconds) ? std::llround(std::max(0.0, seconds)) : 0;
}

} // namespace

std::string whole_line(const std::vector<LineField>& fields) {
  std::string line;
  for (const LineField& field : fields) {
    absl::StrAppend(&line, line.empty() ? "" : kGap, field.text);
  }
  return line;
}

std::string fitting_line(const std::vector<LineField>& fields, int64_t columns, bool colour) {
  return Choice(fields, columns).line(colour);
}

LineField bar_field(double fraction, int64_t columns) {
  const int64_t cells = columns >= kWideColumns ? 20 : 10;
  const auto filled = static_cast<size_t>(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(cells));
  return {
      "bar", kBarPriority,
      absl::StrCat("[", std::string(filled, '#'), std::string(static_cast<size_t>(cells) - filled, '.'), "]"), "",
      Colour::kBar};
}

std::string format_duration(double seconds) {
  const int64_t total = whole_seconds(seconds);
  const int64_t hours = total / 3600, minutes = total / 60 % 60;
  return hours > 0 ? absl::StrFormat("%d:%02d:%02d", hours, minutes, total % 60)
                   : absl::StrFormat("%d:%02d", minutes, total % 60);
}

std::string brief_duration(double seconds) {
  const int64_t hours = whole_seconds(seconds) / 3600;
  return hours >= 24 ? absl::StrFormat("%dd%dh", hours / 24, hours % 24) : format_duration(seconds);
}

} // namespace distill::metrics
