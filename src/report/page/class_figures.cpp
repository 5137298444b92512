#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "report/page/html.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr std::int64_t kMaxMatrixClasses = 26;  // more do not fit into a page
constexpr std::size_t kListedPairs = 12;

/// The pairs of classes, true and predicted, of which the page has pictures.
using PicturedKinds = std::set<std::pair<std::int64_t, std::int64_t>>;

PicturedKinds pictured_kinds(const RunFiles& run) {
  PicturedKinds kinds;
  for (const Mistake& mistake : run.mistakes) kinds.insert({mistake.truth, mistake.guess});
  return kinds;
}

/// Returns `text` as a link to the pictures of a kind of mistake, as it is where there are none.
std::string link_to_pictures(const PicturedKinds& kinds, const ConfusedPair& pair,
                             const std::string& label, const std::string& text) {
  if (!kinds.contains({pair.truth, pair.predicted})) return text;
  return fmt::format(
      R"(<a href="#kind-{0}-{1}" data-truth="{0}" data-guess="{1}" aria-label="{2}">{3}</a>)",
      pair.truth, pair.predicted, label, text);
}

/// How dark a cell is, from 0 to 9.
int shade(std::int64_t number, std::int64_t most) {
  if (number == 0 || most == 0) return 0;
  const double fraction = static_cast<double>(number) / static_cast<double>(most);
  return std::max(1, static_cast<int>(std::lround(9 * std::sqrt(fraction))));
}

/// A number without its unit: "98.7".
std::string in_percent(double fraction, int digits) {
  return std::isfinite(fraction) ? fmt::format("{:.{}f}", 100 * fraction, digits) : "–";
}

class Matrix {
 public:
  Matrix(const RunFiles& run, const Confusion& confusion)
      : run_(run), confusion_(confusion), kinds_(pictured_kinds(run)) {
    const std::vector<ConfusedPair> worst = most_confused(confusion, 1);
    if (!worst.empty()) most_ = worst.front().images;
  }

  std::string figure() const {
    std::string head = "<td></td>";
    std::string rows;
    for (std::int64_t label = 0; label < confusion_.classes; ++label) {
      const std::string name = escape_html(run_.class_name(label));
      head += head_cell(fmt::format("<span title=\"{0}\">{0}</span>", name));
      rows += row(label);
    }
    const char* css_class = run_.class_names.empty() ? "matrix" : "matrix named";
    const char* hint = kinds_.empty() ? "" : " Choose a red cell to see its images.";
    return "<figure><figcaption>Confusion matrix</figcaption><p class=\"soft\">Rows are the true "
           "classes, columns the predictions." +
           std::string(hint) +
           "</p><input type=\"radio\" name=\"unit\" id=\"as-images\" checked><label "
           "for=\"as-images\">images</label><input type=\"radio\" name=\"unit\" id=\"as-percent\">"
           "<label for=\"as-percent\">percent of the row</label>" +
           scrolling("Confusion matrix", {css_class, head, rows}) + "</figure>\n";
  }

 private:
  std::string row(std::int64_t truth) const {
    std::string cells;
    for (std::int64_t predicted = 0; predicted < confusion_.classes; ++predicted) {
      cells += cell({truth, predicted, confusion_.at(truth, predicted)});
    }
    return "<tr><th scope=\"row\">" + escape_html(run_.class_name(truth)) + "</th>" + cells +
           "</tr>\n";
  }

  std::string cell(const ConfusedPair& pair) const {
    const std::string label =
        fmt::format("{} taken for {}: {}", escape_html(run_.class_name(pair.truth)),
                    escape_html(run_.class_name(pair.predicted)), pair.images);
    const double fraction =
        static_cast<double>(pair.images) / static_cast<double>(confusion_.of(pair.truth));
    const std::string text =
        pair.images == 0 ? "·"
                         : fmt::format(R"(<span class="n">{}</span><span class="p">{}</span>)",
                                       pair.images, in_percent(fraction, fraction == 1 ? 0 : 1));
    const bool is_right = pair.truth == pair.predicted;
    return fmt::format(R"(<td class="{}" title="{}">{}</td>)",
                       is_right ? "right" : fmt::format("e{}", shade(pair.images, most_)), label,
                       is_right ? text : link_to_pictures(kinds_, pair, label, text));
  }

  const RunFiles& run_;
  const Confusion& confusion_;
  PicturedKinds kinds_;
  std::int64_t most_ = 1;  // images in a cell beside the diagonal
};

/// Where the scale of the classes' accuracies begins; it ends at 1.
double scale_begin(const Confusion& confusion) {
  double worst = 1;
  for (std::int64_t label = 0; label < confusion.classes; ++label) {
    if (confusion.of(label) > 0) worst = std::min(worst, confusion.recall(label));
  }
  double begin = 0;
  for (const double step : {0.5, 0.8, 0.9, 0.95, 0.98, 0.99}) {
    if (step < worst) begin = step;
  }
  return begin;
}

class ClassTable {
 public:
  ClassTable(const RunFiles& run, const Confusion& confusion)
      : run_(run), confusion_(confusion), begin_(scale_begin(confusion)) {}

  std::string figure() const {
    std::string rows;
    for (std::int64_t label = 0; label < confusion_.classes; ++label) rows += row(label);
    const std::string scale = fmt::format(
        "<span class=\"scale\"><span>{:.0f}</span><span>100</span></span>", 100 * begin_);
    const std::string head = head_cells({"class", "images", "wrong"}) + head_cell(scale, "dots") +
                             head_cells({"accu&shy;racy", "preci&shy;sion", "F1"});
    const char* css_class = run_.class_names.empty() ? "numbers classes" : "numbers classes named";
    return fmt::format(
               "<figure><figcaption>Classes, in percent</figcaption><p class=\"soft\">Accuracy "
               "(recall): how "
               "many images of the class are recognised. Precision: how many predictions of the "
               "class are "
               "right. F1: both in one. The dots show the accuracy, the line is that of all "
               "images, {}.</p>",
               percent(overall())) +
           scrolling("Accuracy, precision and F1 by class", {css_class, head, rows}) +
           "</figure>\n";
  }

 private:
  double overall() const {
    return static_cast<double>(confusion_.right()) / static_cast<double>(confusion_.all());
  }

  double place(double accuracy) const {
    return 4 + 92 * std::clamp((accuracy - begin_) / (1 - begin_), 0.0, 1.0);
  }

  std::string row(std::int64_t label) const {
    const double accuracy = confusion_.recall(label);
    std::string dot;
    if (std::isfinite(accuracy)) {
      dot = fmt::format(R"(<path class="value{}" d="M{:.1f} 10h0"/>)",
                        accuracy < overall() ? " low" : "", place(accuracy));
    }
    return fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td class=\"dots\"><svg class=\"dots\" "
        "viewBox=\"0 0 100 20\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><path "
        "class=\"track\" d=\"M4 10H96\"/><path class=\"mean\" d=\"M{:.1f} 0V20\"/>{}</svg></td>"
        "<td>{}</td><td>{}</td><td>{}</td></tr>\n",
        escape_html(run_.class_name(label)), count(static_cast<double>(confusion_.of(label))),
        count(static_cast<double>(confusion_.of(label) - confusion_.at(label, label))),
        place(overall()), dot, in_percent(accuracy, 1), in_percent(confusion_.precision(label), 1),
        in_percent(confusion_.f1(label), 1));
  }

  const RunFiles& run_;
  const Confusion& confusion_;
  double begin_;
};

std::string pair_table(const RunFiles& run, const Confusion& confusion) {
  const PicturedKinds kinds = pictured_kinds(run);
  std::string rows;
  for (const ConfusedPair& pair : most_confused(confusion, kListedPairs)) {
    const std::string truth = escape_html(run.class_name(pair.truth));
    const std::string predicted = escape_html(run.class_name(pair.predicted));
    const std::string label = fmt::format("{} taken for {}: {}", truth, predicted, pair.images);
    rows += table_row(
        truth, {predicted, link_to_pictures(kinds, pair, label, std::to_string(pair.images))});
  }
  return "<figure><figcaption>Most confused</figcaption>" +
         scrolling("Most confused",
                   {"numbers pairs", head_cells({"class", "taken for", "images"}), rows}) +
         "</figure>\n";
}

}  // namespace

std::string class_figures(const RunFiles& run, const Confusion& confusion) {
  return "<div class=\"pair\">" +
         (confusion.classes <= kMaxMatrixClasses ? Matrix(run, confusion).figure()
                                                 : pair_table(run, confusion)) +
         ClassTable(run, confusion).figure() + "</div>\n";
}

}  // namespace mnist_train::report
