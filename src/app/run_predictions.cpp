#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "app/build_trainer.h"
#include "app/commands.h"
#include "app/open_dataset.h"
#include "base/error.h"
#include "base/file.h"
#include "base/print.h"
#include "imaging/codec.h"
#include "loader/batch_source.h"

namespace mnist_train::app {

namespace {

using Json = nlohmann::ordered_json;

/// Some of the files, decoded.
struct Images {
  std::vector<std::string> files;     // those that are images
  std::vector<std::uint8_t> pixels;   // [n,C,H,W] u8
  std::vector<std::string> problems;  // a line for each of the others
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
  imaging::Image image = imaging::with_channels(imaging::decode(file.bytes(), path), like.channels);
  if (image.height == like.height && image.width == like.width) return image;
  return imaging::resize(image, like.height, like.width);
}

Images decode(std::span<const std::string> files, const data::ImageSet& like) {
  const auto bytes = static_cast<std::size_t>(like.channels * like.height * like.width);
  std::vector<std::uint8_t> pixels(files.size() * bytes);
  std::vector<std::string> problems(files.size());
  at::parallel_for(
      0, static_cast<std::int64_t>(files.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
          try {
            copy_planes(read_image(files[i], like), &pixels[i * bytes]);
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

/// Returns the double that is printed with the few digits that a float needs.
double shortest(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double result = 0;
  std::from_chars(text.data(), end, result);
  return result;
}

void print_prediction(const std::string& file, const at::Tensor& scores,
                      const std::vector<std::string>& class_names, std::string& text) {
  const auto* begin = scores.const_data_ptr<float>();
  const auto* end = begin + scores.numel();
  const auto predicted = std::max_element(begin, end) - begin;
  Json row = {{"file", file}, {"guess", predicted}};
  if (static_cast<std::size_t>(scores.numel()) == class_names.size()) {
    row["class"] = class_names[static_cast<std::size_t>(predicted)];
  }
  row["scores"] = Json::array();
  for (const auto* score = begin; score != end; ++score) row["scores"].push_back(shortest(*score));
  text += row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// Test images do not need mixup, which would ask other processes.
std::shared_ptr<loader::Augmenter> make_test_augmenter(const Worker& worker,
                                                       const data::ImageSet& like) {
  if (worker.config.data.augment.empty()) return nullptr;
  return std::make_shared<loader::Augmenter>(worker.config.data.augment,
                                             settings::ImageSize{like.height, like.width},
                                             worker.config.train.seed, worker.device());
}

void print_predictions(Worker& worker, models::Model& model, Images images,
                       const data::ImageSet& like) {
  if (images.files.empty()) return;
  const std::vector<std::string> files = images.files;
  const auto source = loader::make_batch_source(
      as_image_set(images, like), settings::effective_normalize(worker.config.data, like.channels),
      worker.device(), at::kFloat, make_test_augmenter(worker, like));
  const auto batch = source->gather_sequential({0, source->count()});
  const at::Tensor scores =
      model.forward(batch.images).to(at::kCPU, at::kDouble).softmax(1).to(at::kFloat).contiguous();
  const settings::DataOptions& options = worker.config.data;
  const std::vector<std::string> class_names =
      options.format ? std::vector<std::string>{}
                     : settings::named_dataset(*options.dataset).class_names;
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    print_prediction(files[i], scores[static_cast<std::int64_t>(i)], class_names, text);
  }
  print_text(text);
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
  std::vector<std::string> problems;
  for (std::size_t begin = 0; begin < files.size(); begin += most) {
    launch::update(worker.status(), launch::Phase::kEvaluation, 0, 0,
                   static_cast<std::int64_t>(begin + 1));
    Images images = decode(files.subspan(begin, std::min(most, files.size() - begin)), like);
    problems.insert(problems.end(), images.problems.begin(), images.problems.end());
    print_predictions(worker, *model, std::move(images), like);
  }
  if (problems.empty()) return;
  std::string message = std::to_string(problems.size()) + " of " + std::to_string(files.size()) +
                        " files cannot be read as images:";
  for (const std::string& problem : problems) message += "\n  " + problem;
  throw Error(ExitCode::kData, message);
}

}  // namespace mnist_train::app
