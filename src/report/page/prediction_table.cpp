#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "report/page/html.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr std::size_t kMaxRows = 1000;
constexpr std::size_t kMaxPictureBytes = 2'000'000;
constexpr std::size_t kMaxBars = 32;

double score(const Prediction& row, std::int64_t label) {
  const auto at = static_cast<std::size_t>(label);
  return label >= 0 && at < row.scores.size() ? row.scores[at] : NAN;
}

double confidence(const Prediction& row) {
  const double value = score(row, row.guess);
  return std::isfinite(value) ? value : 0;
}

/// The classes with the highest scores: "4: 61.2 %, 9: 38.1 %".
std::string in_words(const RunFiles& run, const Prediction& row) {
  std::vector<std::size_t> order(row.scores.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    return row.scores[left] > row.scores[right];
  });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, order.size()); ++i) {
    if (i > 0 && row.scores[order[i]] < 0.0005) break;
    text += fmt::format("{}{}: {}", i == 0 ? "" : ", ",
                        run.class_name(static_cast<std::int64_t>(order[i])),
                        percent(row.scores[order[i]], 1));
  }
  return text;
}

/// A bar for each class, that of the truth in green.
std::string bars(const RunFiles& run, const Prediction& row) {
  std::string words = escape_html(in_words(run, row));
  if (row.scores.empty() || row.scores.size() > kMaxBars) return words;
  std::string text = fmt::format(
      R"(<svg class="scores" viewBox="0 0 {} 20" role="img" aria-label="{}"><path d="M0 19.5H{}"/>)",
      row.scores.size() * 6, words, row.scores.size() * 6);
  for (std::size_t label = 0; label < row.scores.size(); ++label) {
    const double height = 19 * row.scores[label];
    if (!(height > 0.2)) continue;
    text += fmt::format(R"(<rect{} x="{}" y="{:.1f}" width="5" height="{:.1f}"/>)",
                        static_cast<std::int64_t>(label) == row.truth ? " class=\"truth\"" : "",
                        label * 6, 19 - height, height);
  }
  return text + "</svg>";
}

/// A table of the first `shown` predictions.
std::string table_of(const RunFiles& run, const std::string& label,
                     const std::vector<const Prediction*>& predictions, std::size_t shown) {
  std::string rows;
  std::size_t picture_bytes = 0;
  for (std::size_t i = 0; i < shown; ++i) {
    const Prediction& row = *predictions[i];
    const std::string truth = escape_html(run.class_name(row.truth));
    std::string picture = "<span class=\"soft\">omitted</span>";
    if (!row.image.empty() && picture_bytes + row.image.size() <= kMaxPictureBytes) {
      picture_bytes += row.image.size();
      picture = fmt::format(R"(<img src="{}" alt="test image {}: {}" loading="lazy">)", row.image,
                            row.id, truth);
    }
    rows += fmt::format(
        "<tr data-truth=\"{}\" data-prediction=\"{}\"><td>{}</td><td>{}</td>"
        "<td class=\"{}\">{}</td><td>{}</td><td class=\"extra\">{}</td><td>{}</td>"
        "<td class=\"extra soft\">{}</td></tr>\n",
        row.truth, row.guess, picture, truth, row.guess == row.truth ? "good" : "bad",
        escape_html(run.class_name(row.guess)), percent(confidence(row), 1),
        percent(score(row, row.truth), 1), bars(run, row), row.id);
  }
  const std::string head = head_cells({"image", "truth", "prediction", "confidence"}) +
                           head_cell("score of the truth", "extra") + head_cell("scores by class") +
                           head_cell("id", "extra");
  return scrolling(label, {"predictions", head, rows});
}

}  // namespace

std::string prediction_table(const RunFiles& run) {
  if (run.predictions.empty()) return "";
  std::vector<const Prediction*> wrong;
  std::vector<const Prediction*> right;
  for (const Prediction& row : run.predictions) {
    (row.guess == row.truth ? right : wrong).push_back(&row);
  }
  std::stable_sort(wrong.begin(), wrong.end(),
                   [](auto* a, auto* b) { return confidence(*a) > confidence(*b); });
  std::stable_sort(right.begin(), right.end(),
                   [](auto* a, auto* b) { return confidence(*a) < confidence(*b); });
  const std::size_t wrong_shown = std::min(wrong.size(), kMaxRows);
  const std::size_t right_shown = std::min(right.size(), kMaxRows - wrong_shown);
  std::string text = fmt::format(
      "<h3 id=\"predictions\">Test images and predictions</h3>\n<p>The run keeps its predictions "
      "for {} of the test images; {} of them are wrong. Bars are probabilities by class, the true "
      "one in <span class=\"good\">green</span>. <span id=\"filters\"></span></p>\n",
      count(static_cast<double>(run.predictions.size())), wrong.size());
  if (wrong_shown > 0) {
    text += "<h4>Wrong, the most confident first</h4>" +
            table_of(run, "Wrong predictions", wrong, wrong_shown);
  }
  if (right_shown > 0) {
    text += fmt::format(
        "<details id=\"right-predictions\"{}><summary>Right, the least confident first "
        "({}{})</summary>",
        wrong.empty() ? " open" : "", right_shown,
        right_shown < right.size() ? fmt::format(" of {}", right.size()) : "");
    text += table_of(run, "Right predictions", right, right_shown) + "</details>";
  }
  return text;
}

}  // namespace mnist_train::report
