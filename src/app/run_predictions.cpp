#include <ATen/core/grad_mode.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "app/build_trainer.h"
#include "app/commands.h"
#include "app/open_dataset.h"
#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/print.h"
#include "base/typed_command.h"
#include "checkpoint/weights.h"
#include "imaging/codec.h"
#include "imaging/inversion.h"
#include "loader/batch_source.h"
#include "report/result_text.h"
#include "settings/trained_brightness.h"

namespace mnist_train::app {

namespace {

/// Some of the files, decoded.
struct Images {
  std::vector<std::string> files;        // those that are images
  std::vector<std::uint8_t> pixels;      // [n,C,H,W] u8
  std::vector<std::string> transparent;  // those of the files with pixels that are not opaque
  std::vector<std::string> problems;     // a line for each of the others
};

/// [H,W,C] -> [C,H,W]
void copy_planes(const imaging::Image& image, std::uint8_t* out) {
  const std::int64_t count = image.height * image.width;
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    for (std::int64_t i = 0; i < count; ++i) {
      *out++ = image.pixels[static_cast<std::size_t>(i * image.channels + channel)];
    }
  }
}

imaging::Image read_image(const std::string& path, const data::ImageSet& like) {
  const MappedFile file = MappedFile::open(path, ExitCode::kData);
  imaging::Image image = imaging::decode(file.bytes(), path, {}, imaging::Transparency::kOnWhite);
  const bool was_transparent = image.was_transparent;
  image = imaging::with_channels(std::move(image), like.channels);
  if (image.height != like.height || image.width != like.width) {
    image = imaging::resize(image, like.height, like.width);
  }
  image.was_transparent = was_transparent;
  return image;
}

Images decode(std::span<const std::string> files, const data::ImageSet& like) {
  const auto bytes = static_cast<std::size_t>(like.channels * like.height * like.width);
  std::vector<std::uint8_t> pixels(files.size() * bytes);
  std::vector<std::string> problems(files.size());
  std::vector<char> transparent(files.size());
  parallel_for(
      0, static_cast<std::int64_t>(files.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
          try {
            const imaging::Image image = read_image(files[i], like);
            copy_planes(image, &pixels[i * bytes]);
            transparent[i] = image.was_transparent ? 1 : 0;
          } catch (const Error& error) {
            problems[i] = error.what();
          }
        }
      });
  Images images;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!problems[i].empty()) {
      images.problems.push_back(problems[i]);
      continue;
    }
    images.files.push_back(files[i]);
    if (transparent[i] != 0) images.transparent.push_back(files[i]);
    const auto* begin = &pixels[i * bytes];
    images.pixels.insert(images.pixels.end(), begin, begin + bytes);
  }
  return images;
}

/// The labels of the set mean nothing.
data::ImageSet as_image_set(Images& images, data::ImageSet set) {
  auto owner = std::make_shared<std::vector<std::uint8_t>>(std::move(images.pixels));
  const std::size_t pixels = owner->size();
  owner->resize(pixels + images.files.size());
  set.count = static_cast<std::int64_t>(images.files.size());
  set.images = {owner->data(), pixels};
  set.labels = {owner->data() + pixels, images.files.size()};
  set.owner = std::move(owner);
  return set;
}

/// Test images do not need mixup, which would ask other processes.
std::shared_ptr<loader::Augmenter> make_test_augmenter(const Worker& worker,
                                                       const data::ImageSet& like) {
  if (worker.config.data.augment.empty()) return nullptr;
  return std::make_shared<loader::Augmenter>(worker.config.data.augment,
                                             settings::ImageSize{like.height, like.width},
                                             worker.config.train.seed, worker.device());
}

std::vector<std::string> class_names_of(const Worker& worker) {
  const settings::DataOptions& options = worker.config.data;
  if (options.format) return checkpoint::trained_class_names(worker.job.checkpoint);
  return settings::named_dataset(*options.dataset).class_names;
}

void print_predictions(Worker& worker, models::Model& model, Images images,
                       const data::ImageSet& like, const std::vector<std::string>& class_names) {
  if (images.files.empty()) return;
  const std::vector<std::string> files = images.files;
  const auto source = loader::make_batch_source(
      as_image_set(images, like), settings::effective_normalize(worker.config.data, like.channels),
      worker.device(), at::kFloat, make_test_augmenter(worker, like));
  const auto batch = source->gather_sequential({0, source->count()});
  const at::Tensor scores =
      model.forward(batch.images).to(at::kCPU, at::kDouble).softmax(1).to(at::kFloat).contiguous();
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const at::Tensor row = scores[static_cast<std::int64_t>(i)];
    const auto* begin = row.const_data_ptr<float>();
    const report::FilePrediction prediction{files[i], {begin, begin + row.numel()}};
    text += worker.job.as_json ? json_text(report::to_json(prediction, class_names)) + "\n"
                               : report::to_text(prediction, class_names);
  }
  print_text(text);
}

std::vector<std::string> find_inverted(const Images& images, const data::ImageSet& like,
                                       double trained) {
  std::vector<std::string> inverted;
  const auto bytes = static_cast<std::size_t>(like.channels * like.height * like.width);
  const std::span<const std::uint8_t> pixels = images.pixels;
  for (std::size_t i = 0; i < images.files.size(); ++i) {
    const double border =
        imaging::border_brightness(pixels.subspan(i * bytes, bytes), like.height, like.width);
    if (imaging::looks_inverted(border, trained)) inverted.push_back(images.files[i]);
  }
  return inverted;
}

std::string first_of(const std::vector<std::string>& files) {
  constexpr std::size_t kMostNamed = 5;
  std::string names;
  for (std::size_t i = 0; i < std::min(files.size(), kMostNamed); ++i) {
    names += (i == 0 ? "" : ", ") + files[i];
  }
  return names + (files.size() > kMostNamed ? ", …" : "");
}

void tell_of_transparent(const std::vector<std::string>& transparent, std::size_t count) {
  if (transparent.empty()) return;
  spdlog::info("{} of {} images {} transparent pixels, which are taken as white: {}",
               transparent.size(), count, transparent.size() == 1 ? "has" : "have",
               first_of(transparent));
}

void warn_of_inverted(const std::vector<std::string>& inverted, std::size_t count, double trained) {
  if (inverted.empty()) return;
  const bool dark = trained < 0.5;
  spdlog::warn(
      "{} of {} images look{} inverted ({}): {} on a {} ground, but the model was trained on "
      "images with a {} ground; for a prediction that means something invert them, with "
      "ImageMagick for example by: convert {} -background white -alpha remove -negate inverted.png",
      inverted.size(), count, inverted.size() == 1 ? "s" : "", first_of(inverted),
      dark ? "dark" : "light", dark ? "light" : "dark", dark ? "dark" : "light",
      shell_word((inverted.front().starts_with("-") ? "./" : "") + inverted.front()));
}

}  // namespace

void run_predictions(Worker& worker) {
  if (!worker.is_rank0()) return;
  const at::NoGradGuard no_grad;
  const data::ImageSet like = images_trained_on(worker);
  const auto model = make_model_with_weights(worker, like, worker.job.checkpoint);
  model->to(worker.device());
  model->eval();
  const std::span<const std::string> files = worker.job.images;
  const auto most = static_cast<std::size_t>(worker.config.train.test_batch_size);
  const std::vector<std::string> class_names = class_names_of(worker);
  const auto trained = settings::trained_brightness(worker.config.data);
  std::vector<std::string> inverted;
  std::vector<std::string> transparent;
  std::vector<std::string> problems;
  for (std::size_t begin = 0; begin < files.size(); begin += most) {
    launch::update(worker.status(), launch::Phase::kEvaluation, 0, 0,
                   static_cast<std::int64_t>(begin + 1));
    Images images = decode(files.subspan(begin, std::min(most, files.size() - begin)), like);
    problems.insert(problems.end(), images.problems.begin(), images.problems.end());
    transparent.insert(transparent.end(), images.transparent.begin(), images.transparent.end());
    if (trained) {
      const auto found = find_inverted(images, like, *trained);
      inverted.insert(inverted.end(), found.begin(), found.end());
    }
    print_predictions(worker, *model, std::move(images), like, class_names);
  }
  tell_of_transparent(transparent, files.size() - problems.size());
  warn_of_inverted(inverted, files.size() - problems.size(), trained.value_or(0));
  if (problems.empty()) return;
  std::string message = std::to_string(problems.size()) + " of " + std::to_string(files.size()) +
                        " files cannot be read as images:";
  for (const std::string& problem : problems) message += "\n  " + problem;
  throw Error(ExitCode::kData, message);
}

}  // namespace mnist_train::app
