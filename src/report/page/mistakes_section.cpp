#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "report/page/html.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr std::int64_t kMaxMatrixClasses = 26;  // more do not fit onto a page
constexpr std::size_t kMaxPairs = 6;

/// The counts of the last evaluation.
class Confusion {
 public:
  explicit Confusion(const EpochDetails& details)
      : classes(details.classes), counts_(details.confusion) {}

  std::int64_t at(std::int64_t truth, std::int64_t guess) const {
    return counts_[static_cast<std::size_t>(truth * classes + guess)];
  }
  std::int64_t of(std::int64_t truth) const {
    std::int64_t sum = 0;
    for (std::int64_t guess = 0; guess < classes; ++guess) sum += at(truth, guess);
    return sum;
  }
  std::int64_t all() const {
    std::int64_t sum = 0;
    for (const std::int64_t number : counts_) sum += number;
    return sum;
  }
  std::int64_t wrong() const {
    std::int64_t right = 0;
    for (std::int64_t label = 0; label < classes; ++label) right += at(label, label);
    return all() - right;
  }

  const std::int64_t classes;

 private:
  const std::vector<std::int64_t>& counts_;
};

struct Pair {
  std::int64_t truth;
  std::int64_t guess;
  std::int64_t number;
};

std::vector<Pair> most_confused(const Confusion& confusion) {
  std::vector<Pair> pairs;
  for (std::int64_t truth = 0; truth < confusion.classes; ++truth) {
    for (std::int64_t guess = 0; guess < confusion.classes; ++guess) {
      const std::int64_t number = confusion.at(truth, guess);
      if (truth != guess && number > 0) pairs.push_back({truth, guess, number});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& left, const Pair& right) { return left.number > right.number; });
  if (pairs.size() > kMaxPairs) pairs.resize(kMaxPairs);
  return pairs;
}

std::string verdict(const Confusion& confusion) {
  const auto all = static_cast<double>(confusion.all());
  const auto wrong = static_cast<double>(confusion.wrong());
  std::string text =
      fmt::format("{} of {} test images ({})", count(wrong), count(all), percent(wrong / all));
  const std::vector<Pair> pairs = most_confused(confusion);
  if (!pairs.empty()) {
    text += ". Most often ";
    for (std::size_t i = 0; i < std::min<std::size_t>(3, pairs.size()); ++i) {
      text += fmt::format("{}a <b>{}</b> is taken for a <b>{}</b> ({}×)", i == 0 ? "" : ", ",
                          pairs[i].truth, pairs[i].guess, pairs[i].number);
    }
  }
  return text + ".";
}

/// 0 to 9: how dark a cell is.
int shade(std::int64_t number, std::int64_t most) {
  if (number == 0 || most == 0) return 0;
  const double share = static_cast<double>(number) / static_cast<double>(most);
  return std::max(1, static_cast<int>(std::lround(9 * std::sqrt(share))));
}

std::string matrix(const Confusion& confusion) {
  std::int64_t most = 1;
  for (const Pair& pair : most_confused(confusion)) most = std::max(most, pair.number);
  std::string head = "<td></td>";
  std::string rows;
  for (std::int64_t truth = 0; truth < confusion.classes; ++truth) {
    head += fmt::format("<th scope=\"col\">{}</th>", truth);
    rows += fmt::format("<tr><th scope=\"row\">{}</th>", truth);
    for (std::int64_t guess = 0; guess < confusion.classes; ++guess) {
      const std::int64_t number = confusion.at(truth, guess);
      const std::string look = truth == guess ? "right" : fmt::format("e{}", shade(number, most));
      rows += fmt::format("<td class=\"{}\" title=\"a {} taken for a {}: {}\">{}</td>", look, truth,
                          guess, number, number == 0 ? "·" : std::to_string(number));
    }
    rows += "</tr>\n";
  }
  return "<figure class=\"wide\"><figcaption>Confusion matrix: what the image is (rows) and what "
         "was guessed (columns)</figcaption>"
         "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Confusion "
         "matrix\"><table class=\"matrix\"><thead><tr>" +
         head + "</tr></thead><tbody>" + rows + "</tbody></table></div></figure>\n";
}

std::string class_table(const Confusion& confusion) {
  double worst = 0;
  const auto error_of = [&](std::int64_t label) {
    const auto all = static_cast<double>(confusion.of(label));
    return all > 0 ? 1 - static_cast<double>(confusion.at(label, label)) / all : 0;
  };
  for (std::int64_t label = 0; label < confusion.classes; ++label) {
    worst = std::max(worst, error_of(label));
  }
  std::string rows;
  for (std::int64_t label = 0; label < confusion.classes; ++label) {
    const std::int64_t all = confusion.of(label);
    const double error = error_of(label);
    rows += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td>"
        "<td class=\"barcell\"><svg class=\"errorbar\" viewBox=\"0 0 100 8\" "
        "preserveAspectRatio=\"none\" aria-hidden=\"true\">"
        "<rect width=\"{:.1f}\" height=\"8\"/></svg></td></tr>\n",
        label, count(static_cast<double>(all)), all > 0 ? percent(1 - error) : "–",
        all - confusion.at(label, label), worst > 0 ? 100 * error / worst : 0);
  }
  return "<figure><figcaption>Accuracy by class</figcaption><div class=\"scroll\" tabindex=\"0\" "
         "role=\"region\" aria-label=\"Accuracy by class\">"
         "<table class=\"numbers\"><thead><tr><th scope=\"col\">class</th><th "
         "scope=\"col\">images</th><th scope=\"col\">accuracy</th>"
         "<th scope=\"col\">wrong</th><th scope=\"col\"><span class=\"hidden\">share of wrong "
         "guesses</span></th></tr></thead><tbody>" +
         rows + "</tbody></table></div></figure>\n";
}

std::string pair_table(const Confusion& confusion) {
  std::string rows;
  for (const Pair& pair : most_confused(confusion)) {
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>", pair.truth, pair.guess,
                        pair.number);
  }
  return "<figure><figcaption>Most confused</figcaption><table class=\"numbers\"><thead><tr><th "
         "scope=\"col\">class</th>"
         "<th scope=\"col\">taken for</th><th scope=\"col\">images</th></tr></thead><tbody>" +
         rows + "</tbody></table></figure>\n";
}

}  // namespace

std::string mistakes_section(const RunFiles& run) {
  std::string text = "<section id=\"mistakes\"><h2>What does it get wrong?</h2>\n";
  const EpochDetails none;
  const Confusion confusion(run.epochs.empty() ? none : run.epochs.back().details);
  if (confusion.classes > 0 && confusion.all() > 0) {
    text += "<p class=\"lead\">" + verdict(confusion) + "</p>\n<div class=\"charts\">";
    text += confusion.classes <= kMaxMatrixClasses ? matrix(confusion) : pair_table(confusion);
    text += class_table(confusion) + "</div>\n";
  } else {
    text += "<p class=\"lead\">Not known yet: no evaluation has been counted.</p>\n";
  }
  return text + prediction_table(run) + "</section>\n";
}

}  // namespace mnist_train::report
