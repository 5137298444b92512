#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <ranges>
#include <set>

#include "base/print.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr std::int64_t kMaxMatrixClasses = 26;  // larger matrices do not fit on a page
constexpr std::int64_t kWideClasses = 14;       // matrices from this size on use the full width
constexpr std::size_t kListedPairs = 30;        // shown if the matrix would be too large
constexpr std::size_t kListedClasses = 50;      // rows of the class table: the worst classes
constexpr std::size_t kNamedPairs = 3;          // in the summary sentence
constexpr std::size_t kFirstPictures = 24;

/// Returns the name of a class for a table cell, where CSS shortens long names.
std::string class_label(const RunFiles& run, std::int64_t label) {
  return run.class_names.empty() ? escaped_class(run, label)
                                 : fmt::format(R"(<span class="name" title="{0}">{0}</span>)",
                                               escaped_class(run, label));
}

/// Pairs of true and predicted class that occur in the image list.
using PicturedKinds = std::set<std::pair<std::int64_t, std::int64_t>>;

PicturedKinds pictured_kinds(const RunFiles& run) {
  PicturedKinds kinds;
  for (const Prediction& mistake : run.mistakes) kinds.insert({mistake.truth, mistake.guess});
  return kinds;
}

/// Describes a cell of the matrix: "4 predicted as 9: 12".
std::string pair_label(const RunFiles& run, const ConfusedPair& pair) {
  return fmt::format("{} predicted as {}: {}", escaped_class(run, pair.truth),
                     escaped_class(run, pair.predicted), pair.images);
}

/// Returns `text` as a link to the images of a kind of mistake, or unchanged if there are none.
std::string link_to_pictures(const RunFiles& run, const PicturedKinds& kinds,
                             const ConfusedPair& pair, const std::string& text) {
  if (!kinds.contains({pair.truth, pair.predicted})) return text;
  return fmt::format(
      R"(<a href="#kind-{0}-{1}" data-truth="{0}" data-guess="{1}" aria-label="{2}">{3}</a>)",
      pair.truth, pair.predicted, pair_label(run, pair), text);
}

/// Returns a percentage without the percent sign: "98.7".
std::string in_percent(double fraction, int digits = 1) {
  return std::isfinite(fraction) ? fmt::format("{:.{}f}", 100 * fraction, digits) : "–";
}

/// Returns a cell of the matrix. `max`: the largest number of images in an off-diagonal cell.
std::string matrix_cell(const RunFiles& run, const PicturedKinds& kinds, const ConfusedPair& pair,
                        std::int64_t row_images, std::int64_t max) {
  const double fraction = fraction_of(pair.images, row_images);
  const bool is_right = pair.truth == pair.predicted;
  const std::string text =
      pair.images == 0 && !is_right
          ? "·"
          : fmt::format(R"(<span class="n">{}</span><span class="p">{}</span>)", pair.images,
                        in_percent(fraction, fraction == 1 ? 0 : 1));
  const std::string title = pair_label(run, pair);
  if (is_right) {
    return fmt::format(R"(<td class="{}" title="{}">{}</td>)",
                       pair.images == 0 && row_images > 0 ? "missed" : "right", title, text);
  }
  const auto shade = pair.images == 0
                         ? 0
                         : std::max(1L, std::lround(9 * std::sqrt(fraction_of(pair.images, max))));
  return fmt::format(R"(<td class="e{}" title="{}">{}</td>)", shade, title,
                     link_to_pictures(run, kinds, pair, text));
}

std::string confusion_matrix(const RunFiles& run) {
  const ClassCounts& counts = run.counts;
  const PicturedKinds kinds = pictured_kinds(run);
  const std::vector<ConfusedPair> worst = most_confused(counts, 1);
  const std::int64_t max = worst.empty() ? 1 : worst.front().images;
  std::string head = "<td></td>";
  std::string rows;
  for (std::int64_t truth = 0; truth < counts.classes(); ++truth) {
    head += "<th scope=\"col\">" + class_label(run, truth) + "</th>";
    rows += "<tr><th scope=\"row\">" + class_label(run, truth) + "</th>";
    for (std::int64_t predicted = 0; predicted < counts.classes(); ++predicted) {
      rows += matrix_cell(run, kinds, {truth, predicted, counts.at(truth, predicted)},
                          counts.of(truth).samples, max);
    }
    rows += "</tr>\n";
  }
  const char* hint = kinds.empty() ? "" : " Choose a red cell to see its images.";
  const char* css_class = run.class_names.empty() ? "matrix" : "matrix named";
  return figure(
      "Confusion matrix",
      paragraph("soft", std::string("Rows are true classes, columns are predictions.") + hint) +
          "<input type=\"radio\" name=\"unit\" id=\"as-images\" checked><label "
          "for=\"as-images\">images</label><input type=\"radio\" name=\"unit\" "
          "id=\"as-percent\"><label for=\"as-percent\">percent of the row</label>" +
          scrolling_table("Confusion matrix", css_class, head, rows));
}

/// Lists all classes or, if there are many, the worst by F1 and accuracy; classes with neither
/// images nor predictions come last.
std::string class_table(const RunFiles& run) {
  const ClassCounts& counts = run.counts;
  // The splits in dataset.json apart from the test set, with their column titles.
  std::vector<std::pair<const char*, const char*>> splits{{"train", "train"},
                                                          {"validation", "valid."}};
  const nlohmann::json& sizes = value_in(run.dataset, "classes");
  const auto size_in = [&sizes](std::int64_t label, const char* split) {
    const auto at = static_cast<std::size_t>(label);
    return sizes.is_array() && at < sizes.size() ? number_in(sizes[at], split) : kUnknown;
  };
  std::erase_if(splits, [&](const auto& split) {
    const auto has_images = [&](auto label) { return size_in(label, split.first) > 0; };
    return std::ranges::none_of(std::views::iota(0L, counts.classes()), has_images);
  });
  Table table{"Accuracy, precision and F1 per class",
              run.class_names.empty() ? "numbers classes" : "numbers classes named",
              {"class"}};
  for (const auto& [split, title] : splits) table.heads.emplace_back(title);
  for (const char* head :
       {splits.empty() ? "images" : "test", "wrong", "accu&shy;racy", "preci&shy;sion", "F1"}) {
    table.heads.emplace_back(head);
  }
  std::vector<std::int64_t> listed(counts.samples.size());
  std::iota(listed.begin(), listed.end(), 0);
  if (listed.size() > kListedClasses) {
    std::ranges::stable_sort(listed, {}, [&](std::int64_t label) {
      const double f1 = counts.of(label).f1();
      const double recall = counts.of(label).recall();
      return std::pair(std::isfinite(f1) ? f1 : 2, std::isfinite(recall) ? recall : 2);
    });
    listed.resize(kListedClasses);
  }
  for (const std::int64_t label : listed) {
    const ClassMetrics metrics = counts.of(label);
    std::vector<std::string> cells{class_label(run, label)};
    if (metrics.is_never_predicted())
      cells[0] += "<span class=\"bad never\">never predicted</span>";
    for (const auto& [split, title] : splits) cells.push_back(count(size_in(label, split)));
    cells.insert(
        cells.end(),
        {with_thousands(metrics.samples), with_thousands(metrics.samples - metrics.correct),
         in_percent(metrics.recall()), in_percent(metrics.precision()), in_percent(metrics.f1())});
    table.add(cells);
  }
  const std::string text = fmt::format(
      "Accuracy (recall): the fraction of the class's images that are classified correctly; over "
      "all images, it is {}. Precision: the fraction of predictions of this class that are "
      "correct. F1: their harmonic mean.{}",
      percent(fraction_of(counts.total_correct(), counts.total())),
      splits.empty() ? "" : " The other columns are numbers of images.");
  const std::string title = listed.size() < counts.samples.size()
                                ? fmt::format("The worst {} of {} classes by F1, in percent",
                                              listed.size(), with_thousands(counts.classes()))
                                : "Classes, in percent";
  return figure(title, paragraph("soft", text) + table.html());
}

/// Returns "" if there is no confusion matrix.
std::string pair_table(const RunFiles& run) {
  const PicturedKinds kinds = pictured_kinds(run);
  Table table{"Most confused", "numbers pairs", {"class", "predicted as", "images"}};
  for (const ConfusedPair& pair : most_confused(run.counts, kListedPairs)) {
    table.add({class_label(run, pair.truth), class_label(run, pair.predicted),
               link_to_pictures(run, kinds, pair, std::to_string(pair.images))});
  }
  return run.counts.confusion.empty() ? "" : figure(table.label, table.html());
}

/// Returns a class for use in a sentence: "class <b>4</b>", "<b>Ankle boot</b>".
std::string bold_class(const RunFiles& run, std::int64_t label) {
  const std::string name = "<b>" + escaped_class(run, label) + "</b>";
  return run.class_names.empty() ? "class " + name : name;
}

std::string mistakes_verdict(const RunFiles& run) {
  const auto all = static_cast<double>(run.counts.total());
  const double wrong = all - static_cast<double>(run.counts.total_correct());
  if (wrong == 0) return fmt::format("None of the {} test images.", count(all));
  std::string text =
      fmt::format("{} of {} test images ({})", count(wrong), count(all), percent(wrong / all));
  const char* before = ". Most often ";
  for (const ConfusedPair& pair : most_confused(run.counts, kNamedPairs)) {
    text += fmt::format("{}{} is predicted as {} ({}×)", std::exchange(before, ", "),
                        bold_class(run, pair.truth), bold_class(run, pair.predicted), pair.images);
  }
  return text + ".";
}

/// Returns an item of the image list. Adds its kind to `kinds`, the kinds of all items so far.
std::string thumbnail(const RunFiles& run, const Prediction& mistake, PicturedKinds& kinds) {
  const std::string truth = escaped_class(run, mistake.truth);
  std::string picture = "<span class=\"soft omitted\">omitted</span>";
  if (!mistake.image.empty()) {
    picture = fmt::format(R"(<img src="{}" alt="test image {}: {}" loading="lazy">)", mistake.image,
                          mistake.id, truth);
  }
  std::string file;  // file name, with the path as tooltip
  if (!mistake.file.empty()) {
    file = fmt::format(R"(<span class="soft file" title="{}">{}</span>)", escape_html(mistake.file),
                       escape_html(fs::path(mistake.file).filename().string()));
  }
  const double confidence = mistake.confidence();
  const bool is_first = kinds.insert({mistake.truth, mistake.guess}).second;
  return fmt::format(
      "<li data-truth=\"{0}\" data-guess=\"{1}\"{2}>{3}<span><b>{4}</b> → <b class=\"bad\">{5}</b>"
      "</span><span class=\"soft\"><span>{6}</span> <span>#{7}</span></span>{8}</li>\n",
      mistake.truth, mistake.guess,
      is_first ? fmt::format(R"( id="kind-{}-{}")", mistake.truth, mistake.guess) : "", picture,
      truth, escaped_class(run, mistake.guess),
      percent(confidence, confidence >= 0.995 && confidence < 1 ? 1 : 0), mistake.id, file);
}

std::string wrong_pictures(const RunFiles& run) {
  const std::size_t stored = run.mistakes.size();
  if (stored == 0) return "";
  PicturedKinds kinds;
  std::string first;
  std::string others;
  for (std::size_t i = 0; i < stored; ++i) {
    (i < kFirstPictures ? first : others) += thumbnail(run, run.mistakes[i], kinds);
  }
  const char* css_class = run.class_names.empty() ? "thumbs" : "thumbs wordy";
  std::string text = "<h3 id=\"wrong\">Wrong predictions</h3>\n<p>";
  if (static_cast<std::int64_t>(stored) < run.counts.total() - run.counts.total_correct()) {
    text += fmt::format("{} of them are stored, first the most confident of each kind of mistake. ",
                        stored);
  }
  text += fmt::format(
      "Below each image: the true class → the prediction, its confidence, and the image's position "
      "in the test set{}.</p>\n<div id=\"filters\"></div><ul class=\"{}\" id=\"wrong-images\">{}"
      "</ul>\n",
      run.mistakes.front().file.empty() ? "" : "; then its file", css_class, first);
  if (others.empty()) return text;
  return text + fmt::format(
                    "<details id=\"more-wrong\"><summary>{} more</summary><ul class=\"{}\">"
                    "{}</ul>\n</details>",
                    stored - kFirstPictures, css_class, others);
}

}  // namespace

bool shows_balanced_accuracy(const RunFiles& run) {
  return std::isfinite(run.last(&EpochRecord::test_balanced_accuracy)) &&
         is_imbalanced(run.counts.samples);
}

bool shows_top5_accuracy(const RunFiles& run) {
  return !run.epochs.empty() && run.epochs.back().test_top5_accuracy &&
         run.counts.classes() >= kMinTop5Classes;
}

std::string escaped_class(const RunFiles& run, std::int64_t label) {
  return escape_html(label < 0 ? std::to_string(label)
                               : name_or_number(run.class_names, static_cast<std::size_t>(label)));
}

std::vector<ConfusedPair> most_confused(const ClassCounts& counts, std::size_t limit) {
  std::vector<ConfusedPair> pairs;
  for (std::int64_t i = 0; i < std::ssize(counts.confusion); ++i) {
    const ConfusedPair pair{i / counts.classes(), i % counts.classes(),
                            counts.confusion[static_cast<std::size_t>(i)]};
    if (pair.truth != pair.predicted && pair.images > 0) pairs.push_back(pair);
  }
  std::ranges::stable_sort(pairs, std::greater(), &ConfusedPair::images);
  if (pairs.size() > limit) pairs.resize(limit);
  return pairs;
}

std::string mistakes_section(const RunFiles& run) {
  std::string text;
  if (run.counts.total() > 0) {
    const std::int64_t classes = run.counts.classes();
    const bool has_matrix = !run.counts.confusion.empty() && classes <= kMaxMatrixClasses;
    const bool is_wide = has_matrix && classes >= kWideClasses;
    text = paragraph("lead", mistakes_verdict(run)) +
           (is_wide ? "<div class=\"pair wide\">" : "<div class=\"pair\">") +
           (has_matrix ? confusion_matrix(run) : pair_table(run)) + class_table(run) + "</div>\n";
  } else {
    text = paragraph("lead", run.live ? "Not known yet: the run has not been evaluated."
                                      : "Not known: the run ended before it was evaluated.");
  }
  return section("mistakes", "What does it get wrong?", text + wrong_pictures(run));
}

}  // namespace mnist_train::report
