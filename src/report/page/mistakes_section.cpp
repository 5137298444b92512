#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "report/page/html.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr std::size_t kNamedPairs = 3;  // in the sentence
constexpr std::size_t kFirstPictures = 24;
constexpr std::size_t kMaxPictureBytes = 2'500'000;

/// A class in a sentence: "a <b>4</b>", "<b>Ankle boot</b>".
std::string bold_class(const RunFiles& run, std::int64_t label) {
  const std::string name = "<b>" + escape_html(run.class_name(label)) + "</b>";
  return run.class_names.empty() ? "a " + name : name;
}

/// The class that all images are taken for; -1 where there are several.
std::int64_t only_prediction(const Confusion& confusion) {
  for (std::int64_t label = 0; label < confusion.classes; ++label) {
    if (confusion.predicted_as(label) == confusion.all()) return label;
  }
  return -1;
}

std::string verdict(const RunFiles& run, const Confusion& confusion) {
  const auto all = static_cast<double>(confusion.all());
  const double wrong = all - static_cast<double>(confusion.right());
  if (wrong == 0) return fmt::format("None of the {} test images.", count(all));
  std::string text =
      fmt::format("{} of {} test images ({})", count(wrong), count(all), percent(wrong / all));
  if (const std::int64_t only = only_prediction(confusion); only >= 0) {
    return text + ". It takes every image for " + bold_class(run, only) + ".";
  }
  const std::vector<ConfusedPair> pairs = most_confused(confusion, kNamedPairs);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    text += fmt::format("{}{} is taken for {} ({}×)", i == 0 ? ". Most often " : ", ",
                        bold_class(run, pairs[i].truth), bold_class(run, pairs[i].predicted),
                        pairs[i].images);
  }
  return text + ".";
}

/// The number of an image in the test set, its picture and two lines of HTML below it.
struct Thumbnail {
  std::int64_t id = 0;
  std::string image;
  std::string truth;       // the class's name, not escaped
  std::string attributes;  // of the list's item
  std::string first_line;
  std::string second_line;
};

/// A list of pictures. Those beyond what a page can hold are left out, what is said of them is not.
class Thumbnails {
 public:
  explicit Thumbnails(const RunFiles& run)
      : css_class_(run.class_names.empty() ? "thumbs" : "thumbs wordy") {}

  std::string list(const std::vector<Thumbnail>& thumbnails, std::size_t begin, std::size_t end,
                   const std::string& attributes) {
    std::string items;
    for (std::size_t i = begin; i < end; ++i) items += item(thumbnails[i]);
    return "<ul class=\"" + std::string(css_class_) + "\"" + attributes + ">" + items + "</ul>\n";
  }

 private:
  std::string item(const Thumbnail& thumbnail) {
    std::string picture = "<span class=\"soft omitted\">omitted</span>";
    if (!thumbnail.image.empty() && bytes_ + thumbnail.image.size() <= kMaxPictureBytes) {
      bytes_ += thumbnail.image.size();
      picture = fmt::format(R"(<img src="{}" alt="test image {}: {}" loading="lazy">)",
                            thumbnail.image, thumbnail.id, escape_html(thumbnail.truth));
    }
    return fmt::format("<li{}>{}<span>{}</span><span class=\"soft\">{}</span></li>\n",
                       thumbnail.attributes, picture, thumbnail.first_line, thumbnail.second_line);
  }

  const char* css_class_;
  std::size_t bytes_ = 0;
};

std::string rounded_percent(double fraction) {
  return fraction >= 0.995 && fraction < 1 ? percent(fraction, 1) : percent(fraction, 0);
}

std::vector<Thumbnail> wrong_thumbnails(const RunFiles& run) {
  std::vector<Thumbnail> thumbnails;
  thumbnails.reserve(run.mistakes.size());
  std::set<std::pair<std::int64_t, std::int64_t>> kinds;
  for (const Mistake& mistake : run.mistakes) {
    const std::string truth = run.class_name(mistake.truth);
    std::string attributes =
        fmt::format(R"( data-truth="{}" data-guess="{}")", mistake.truth, mistake.guess);
    if (kinds.insert({mistake.truth, mistake.guess}).second) {
      attributes += fmt::format(R"( id="kind-{}-{}")", mistake.truth, mistake.guess);
    }
    thumbnails.push_back({mistake.id, mistake.image, truth, attributes,
                          fmt::format("<b>{}</b> → <b class=\"bad\">{}</b>", escape_html(truth),
                                      escape_html(run.class_name(mistake.guess))),
                          fmt::format("<span>{}</span> <span>#{}</span>",
                                      rounded_percent(mistake.confidence), mistake.id)});
  }
  return thumbnails;
}

std::string wrong_pictures(const RunFiles& run, const Confusion& confusion,
                           Thumbnails& thumbnails) {
  const std::vector<Thumbnail> wrong = wrong_thumbnails(run);
  if (wrong.empty()) return "";
  const auto all = static_cast<std::size_t>(confusion.all() - confusion.right());
  const std::string kept =
      wrong.size() < all
          ? fmt::format(
                "{} of them are kept here: of each kind of mistake the most confident ones. ",
                wrong.size())
          : "";
  const std::size_t first = std::min(wrong.size(), kFirstPictures);
  std::string text = "<h3 id=\"wrong\">Wrong predictions</h3>\n<p>" + kept +
                     "Below each image: the true class → the prediction, then the model's "
                     "confidence in it and the image's "
                     "number in the test set.</p>\n<div id=\"filters\"></div>" +
                     thumbnails.list(wrong, 0, first, " id=\"wrong-images\"");
  if (first < wrong.size()) {
    text +=
        fmt::format("<details id=\"more-wrong\"><summary>{} more</summary>", wrong.size() - first) +
        thumbnails.list(wrong, first, wrong.size(), "") + "</details>";
  }
  return text;
}

double score(const Prediction& row, std::int64_t label) {
  const auto at = static_cast<std::size_t>(label);
  return label >= 0 && at < row.scores.size() && std::isfinite(row.scores[at]) ? row.scores[at] : 0;
}

/// The class that comes second: "9: 38 %".
std::string runner_up(const RunFiles& run, const Prediction& row) {
  std::int64_t second = -1;
  for (std::int64_t label = 0; label < static_cast<std::int64_t>(row.scores.size()); ++label) {
    if (label != row.guess && (second < 0 || score(row, label) > score(row, second)))
      second = label;
  }
  return second < 0 ? "" : run.class_name(second) + ": " + rounded_percent(score(row, second));
}

/// Right predictions that were nearly wrong, among those that the run has stored.
std::string unsure_pictures(const RunFiles& run, Thumbnails& thumbnails) {
  std::vector<const Prediction*> right;
  for (const Prediction& row : run.predictions) {
    if (row.guess == row.truth) right.push_back(&row);
  }
  if (right.empty()) return "";
  std::stable_sort(right.begin(), right.end(),
                   [](auto* a, auto* b) { return score(*a, a->guess) < score(*b, b->guess); });
  right.resize(std::min(right.size(), kFirstPictures));
  std::vector<Thumbnail> unsure;
  unsure.reserve(right.size());
  for (const Prediction* row : right) {
    const std::string truth = run.class_name(row->truth);
    unsure.push_back({row->id, row->image, truth, "",
                      fmt::format("<b class=\"good\">{}</b>: {}", escape_html(truth),
                                  rounded_percent(score(*row, row->guess))),
                      escape_html(runner_up(run, *row))});
  }
  return fmt::format(
             "<details id=\"unsure\"><summary>Right, but least sure</summary><p>Of the {} test "
             "images whose "
             "predictions the run stores one by one, those with the least confidence in the right "
             "class, and the class that came second.</p>",
             count(static_cast<double>(run.predictions.size()))) +
         thumbnails.list(unsure, 0, unsure.size(), "") + "</details>";
}

}  // namespace

std::string mistakes_section(const RunFiles& run) {
  std::string text = "<section id=\"mistakes\"><h2>What does it get wrong?</h2>\n";
  const EpochDetails none;
  const Confusion confusion(run.epochs.empty() ? none : run.epochs.back().details);
  if (confusion.classes > 0 && confusion.all() > 0) {
    text +=
        "<p class=\"lead\">" + verdict(run, confusion) + "</p>\n" + class_figures(run, confusion);
  } else {
    text += run.live ? "<p class=\"lead\">Not known yet: the run has not been evaluated.</p>\n"
                     : "<p class=\"lead\">Not known: the run ended before it was evaluated.</p>\n";
  }
  Thumbnails thumbnails(run);
  text += wrong_pictures(run, confusion, thumbnails);
  return text + unsure_pictures(run, thumbnails) + "</section>\n";
}

}  // namespace mnist_train::report
