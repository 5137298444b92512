#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "report/page/html.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr std::int64_t kMaxMatrixClasses = 26;  // more do not fit into a page
constexpr std::size_t kNamedPairs = 3;          // in the sentence
constexpr std::size_t kListedPairs = 6;
constexpr std::size_t kMaxRows = 1000;  // of predictions
constexpr std::size_t kMaxPictureBytes = 2'000'000;
constexpr std::size_t kMaxBars = 32;  // of scores

/// A class whose images were taken for another.
struct ConfusedPair {
  std::int64_t truth;
  std::int64_t predicted;
  std::int64_t images;
};

/// At most `most` pairs, the most frequent first.
std::vector<ConfusedPair> most_confused(const Confusion& confusion, std::size_t most) {
  std::vector<ConfusedPair> pairs;
  for (std::int64_t truth = 0; truth < confusion.classes; ++truth) {
    for (std::int64_t predicted = 0; predicted < confusion.classes; ++predicted) {
      const std::int64_t images = confusion.at(truth, predicted);
      if (truth != predicted && images > 0) pairs.push_back({truth, predicted, images});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const ConfusedPair& a, const ConfusedPair& b) {
    return a.images > b.images;
  });
  if (pairs.size() > most) pairs.resize(most);
  return pairs;
}

/// A class in a sentence: "a <b>4</b>", "<b>Ankle boot</b>".
std::string bold_class(const RunFiles& run, std::int64_t label) {
  const std::string name = "<b>" + escape_html(run.class_name(label)) + "</b>";
  return run.class_names.empty() ? "a " + name : name;
}

std::string verdict(const RunFiles& run, const Confusion& confusion) {
  std::int64_t right = 0;
  for (std::int64_t label = 0; label < confusion.classes; ++label) {
    right += confusion.at(label, label);
  }
  const auto all = static_cast<double>(confusion.all());
  const double wrong = all - static_cast<double>(right);
  std::string text =
      fmt::format("{} of {} test images ({})", count(wrong), count(all), percent(wrong / all));
  const std::vector<ConfusedPair> pairs = most_confused(confusion, kNamedPairs);
  if (!pairs.empty()) {
    text += ". Most often ";
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      text += fmt::format("{}{} is taken for {} ({}×)", i == 0 ? "" : ", ",
                          bold_class(run, pairs[i].truth), bold_class(run, pairs[i].predicted),
                          pairs[i].images);
    }
  }
  return text + ".";
}

/// How dark a cell is, from 0 to 9.
int shade(std::int64_t number, std::int64_t most) {
  if (number == 0 || most == 0) return 0;
  const double fraction = static_cast<double>(number) / static_cast<double>(most);
  return std::max(1, static_cast<int>(std::lround(9 * std::sqrt(fraction))));
}

std::string matrix_row(const RunFiles& run, const Confusion& confusion, std::int64_t truth,
                       std::int64_t most) {
  const std::string name = escape_html(run.class_name(truth));
  std::string row = "<tr><th scope=\"row\">" + name + "</th>";
  for (std::int64_t predicted = 0; predicted < confusion.classes; ++predicted) {
    const std::int64_t number = confusion.at(truth, predicted);
    const std::string css_class =
        truth == predicted ? "right" : fmt::format("e{}", shade(number, most));
    row += fmt::format("<td class=\"{}\" title=\"{} taken for {}: {}\">{}</td>", css_class, name,
                       escape_html(run.class_name(predicted)), number,
                       number == 0 ? "·" : std::to_string(number));
  }
  return row + "</tr>\n";
}

std::string matrix(const RunFiles& run, const Confusion& confusion) {
  const std::vector<ConfusedPair> worst = most_confused(confusion, 1);
  const std::int64_t most = worst.empty() ? 1 : worst.front().images;
  std::string head = "<td></td>";
  std::string rows;
  for (std::int64_t label = 0; label < confusion.classes; ++label) {
    head += head_cell("<span>" + escape_html(run.class_name(label)) + "</span>");
    rows += matrix_row(run, confusion, label, most);
  }
  const char* css_class = run.class_names.empty() ? "matrix" : "matrix named";
  return "<figure class=\"wide\"><figcaption>Confusion matrix: truth in rows, predictions in "
         "columns</figcaption>" +
         scrolling("Confusion matrix", {css_class, head, rows}) + "</figure>\n";
}

std::string class_table(const RunFiles& run, const Confusion& confusion) {
  const auto error_of = [&](std::int64_t label) {
    return confusion.of(label) > 0 ? 1 - confusion.accuracy(label) : 0;
  };
  double worst = 0;
  for (std::int64_t label = 0; label < confusion.classes; ++label) {
    worst = std::max(worst, error_of(label));
  }
  std::string rows;
  for (std::int64_t label = 0; label < confusion.classes; ++label) {
    const std::int64_t all = confusion.of(label);
    rows += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td>"
        "<td class=\"barcell\"><svg class=\"errorbar\" viewBox=\"0 0 100 8\" "
        "preserveAspectRatio=\"none\" aria-hidden=\"true\">"
        "<rect width=\"{:.1f}\" height=\"8\"/></svg></td></tr>\n",
        escape_html(run.class_name(label)), count(static_cast<double>(all)),
        percent(confusion.accuracy(label)), all - confusion.at(label, label),
        worst > 0 ? 100 * error_of(label) / worst : 0);
  }
  const std::string head =
      head_cells({"class", "images", "accuracy", "wrong",
                  "<span class=\"hidden\">fraction of wrong predictions</span>"});
  return "<figure><figcaption>Accuracy by class</figcaption>" +
         scrolling("Accuracy by class", {"numbers", head, rows}) + "</figure>\n";
}

std::string pair_table(const RunFiles& run, const Confusion& confusion) {
  std::string rows;
  for (const ConfusedPair& pair : most_confused(confusion, kListedPairs)) {
    rows +=
        table_row("", {escape_html(run.class_name(pair.truth)),
                       escape_html(run.class_name(pair.predicted)), std::to_string(pair.images)});
  }
  return "<figure><figcaption>Most confused</figcaption>" +
         to_html({"numbers", head_cells({"class", "taken for", "images"}), rows}) + "</figure>\n";
}

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

/// Wrong predictions, the most confident first, then right ones, the least confident first.
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

}  // namespace

std::string mistakes_section(const RunFiles& run) {
  std::string text = "<section id=\"mistakes\"><h2>What does it get wrong?</h2>\n";
  const EpochDetails none;
  const Confusion confusion(run.epochs.empty() ? none : run.epochs.back().details);
  if (confusion.classes > 0 && confusion.all() > 0) {
    text += "<p class=\"lead\">" + verdict(run, confusion) + "</p>\n<div class=\"charts\">";
    text += confusion.classes <= kMaxMatrixClasses ? matrix(run, confusion)
                                                   : pair_table(run, confusion);
    text += class_table(run, confusion) + "</div>\n";
  } else {
    text += "<p class=\"lead\">Not known yet: the run has not been evaluated.</p>\n";
  }
  return text + prediction_table(run) + "</section>\n";
}

}  // namespace mnist_train::report
