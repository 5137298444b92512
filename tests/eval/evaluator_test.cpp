#include "eval/evaluator.h"

#include "loader/batch_source.h"
#include "models/loss.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/small_images.h"
#include "support/tiny_model.h"

namespace mnist_train::eval {
namespace {

using namespace testing;

constexpr std::int64_t kCount = 37;
const settings::NormalizeOptions kNormalize{0.5, 0.25};

std::unique_ptr<loader::BatchSource> images_of(std::int64_t count) {
  return loader::make_batch_source(small_images({.count = count}), kNormalize, at::kCPU);
}

Evaluation in_one_go(std::int64_t count, bool with_batch_norm = false) {
  const at::NoGradGuard no_grad;
  const auto images = images_of(count);
  const auto model = tiny_model(1, with_batch_norm);
  model->eval();
  const loader::Batch all = images->gather({{0, count}, loader::Order::kStored});
  const auto loss = models::batch_loss(model->forward(all.images), {all.labels});
  const auto samples = static_cast<double>(count);
  Evaluation evaluation;
  evaluation.loss = loss.loss_sum.item<double>() / samples;
  evaluation.accuracy = loss.correct.item<double>() / samples;
  evaluation.samples = count;
  return evaluation;
}

/// Evaluates a rank's share of the images in batches of 4 on the CPU.
Evaluation evaluated(const comm::Communicator& communicator, const EvaluationRequest& request = {},
                     std::int64_t count = kCount) {
  return evaluate(
      *tiny_model(1), *images_of(count), 4, communicator, at::kCPU, [] {}, request);
}

/// Like `evaluated`, on each of several ranks; returns the results by rank.
std::vector<Evaluation> evaluated_by(int ranks, const EvaluationRequest& request = {},
                                     std::int64_t count = kCount) {
  return results_of_ranks(ranks, [&](const comm::Communicator& communicator) {
    return evaluated(communicator, request, count);
  });
}

TEST_CASE("every sample counts once, whatever the batch size") {
  const Evaluation expected = in_one_go(kCount);
  for (const std::int64_t batch_size : {1, 5, 36, 37, 1000}) {
    std::int64_t batches = 0;
    const Evaluation evaluation = evaluate(*tiny_model(1), *images_of(kCount), batch_size,
                                           comm::Communicator(), at::kCPU, [&] { ++batches; });
    INFO("batches of " << batch_size);
    CHECK(evaluation.samples == kCount);
    CHECK(evaluation.accuracy == expected.accuracy);
    CHECK(evaluation.loss == Approx(expected.loss).epsilon(1e-6));
    CHECK(batches == (kCount + batch_size - 1) / batch_size);
  }
}

TEST_CASE("all ranks get the same result, even without samples; shards make it bit-identical") {
  for (const std::int64_t count : {kCount, std::int64_t{2}, std::int64_t{1}}) {
    const Evaluation expected = in_one_go(count);
    const Evaluation in_shards = evaluated(comm::Communicator(), {.shards = 3}, count);
    for (const int world_size : {2, 3}) {
      for (const bool shards : {false, true}) {
        EvaluationRequest request;
        if (shards) request.shards = 3;
        const std::vector<Evaluation> results = evaluated_by(world_size, request, count);
        for (const Evaluation& result : results) {
          CHECK(result.samples == count);
          CHECK(result.accuracy == expected.accuracy);
          CHECK(result.loss == Approx(expected.loss).epsilon(1e-6));
          CHECK(result.loss == (shards ? in_shards : results[0]).loss);
        }
      }
    }
  }
}

/// Checks that both have the same samples and predicted classes, and scores within `margin`.
void check_predictions(const Evaluation& result, const Evaluation& expected, double margin = 0) {
  REQUIRE(result.predictions.size() == expected.predictions.size());
  for (std::size_t i = 0; i < expected.predictions.size(); ++i) {
    CHECK(result.predictions[i].sample == expected.predictions[i].sample);
    CHECK(result.predictions[i].predicted_class == expected.predictions[i].predicted_class);
    for (std::size_t label = 0; label < 10; ++label) {
      CHECK(result.predictions[i].scores[label].first == static_cast<std::int64_t>(label));
      CHECK(result.predictions[i].scores[label].second ==
            Approx(expected.predictions[i].scores[label].second).epsilon(1e-5).margin(margin));
    }
  }
}

TEST_CASE("confusion matrix and predictions do not depend on the number of ranks") {
  const EvaluationRequest request{.predictions = {{0, 3}, {10, 14}, {30, kCount}}};
  const Evaluation alone = evaluated(comm::Communicator(), request);
  REQUIRE(alone.counts.confusion.size() == 100);
  std::int64_t right = 0;
  for (std::size_t i = 0; i < 100; i += 11) right += alone.counts.confusion[i];
  CHECK(std::accumulate(alone.counts.confusion.begin(), alone.counts.confusion.end(),
                        std::int64_t{0}) == kCount);
  CHECK(static_cast<double>(right) / kCount == Approx(alone.accuracy));
  REQUIRE(alone.predictions.size() == 14);
  CHECK(alone.predictions[2].sample == 2);
  CHECK(alone.predictions[3].sample == 10);
  CHECK(alone.predictions.back().sample == kCount - 1);
  for (const SamplePrediction& prediction : alone.predictions) {
    double sum = 0;
    std::pair<double, std::int64_t> greatest{0, 0};
    for (const auto& [label, score] : prediction.scores) {
      sum += score;
      greatest = std::max(greatest, {score, label});
    }
    CHECK(sum == Approx(1));
    CHECK(greatest.second == prediction.predicted_class);
  }

  for (const int world_size : {2, 3}) {
    for (const Evaluation& result : evaluated_by(world_size, request)) {
      CHECK(result.counts.confusion == alone.counts.confusion);
      check_predictions(result, alone, 1e-9);
    }
  }
}

TEST_CASE("all wrong predictions are returned on any number of ranks") {
  const EvaluationRequest request{.predictions = {{0, kCount}}};
  const auto images = images_of(kCount);
  const std::span<const std::uint16_t> labels = images->images().labels;
  for (const int world_size : {1, 2, 3}) {
    for (const Evaluation& result : evaluated_by(world_size, request)) {
      std::size_t next = 0;
      for (const SamplePrediction& prediction : result.predictions) {
        const auto sample = static_cast<std::size_t>(prediction.sample);
        if (prediction.predicted_class == labels[sample]) continue;
        REQUIRE(next < result.wrong_predictions.size());
        const SamplePrediction& wrong = result.wrong_predictions[next++];
        CHECK(wrong.sample == prediction.sample);
        CHECK(wrong.predicted_class == prediction.predicted_class);
        CHECK(wrong.scores.at(0).second ==
              Approx(prediction.scores[static_cast<std::size_t>(wrong.predicted_class)].second));
      }
      CHECK(next > 0);
      CHECK(next == result.wrong_predictions.size());
    }
  }
}

TEST_CASE("a bf16 copy of the model changes only the loss, and only slightly") {
  constexpr std::int64_t kMany = 300;
  const auto evaluate_on = [&](const comm::Communicator& communicator, bool by_copy) {
    const auto model = tiny_model(1);
    const auto bf16_copy = tiny_model(1);
    {
      const at::NoGradGuard no_grad;
      for (const auto& some : {model, bf16_copy}) {
        for (at::Tensor& parameter : some->parameters())
          parameter.mul_(4);  // makes the model confident
      }
    }
    bf16_copy->compute_in_bfloat16();
    const EvaluationRequest request{.predictions = {{0, 3}, {kMany - 2, kMany}},
                                    .shards = 3,
                                    .bf16_copy = by_copy ? bf16_copy.get() : nullptr};
    return evaluate(
        *model, *images_of(kMany), 16, communicator, at::kCPU, [] {}, request);
  };
  const Evaluation expected = evaluate_on(comm::Communicator(), false);
  const Evaluation cascaded = evaluate_on(comm::Communicator(), true);
  CHECK(cascaded.accuracy == expected.accuracy);
  CHECK(cascaded.counts.confusion == expected.counts.confusion);
  CHECK(cascaded.loss == Approx(expected.loss).epsilon(1e-3));
  CHECK(cascaded.loss != expected.loss);
  CHECK(cascaded.predictions.size() == 5);
  check_predictions(cascaded, expected);
  REQUIRE(cascaded.wrong_predictions.size() == expected.wrong_predictions.size());
  for (std::size_t i = 0; i < expected.wrong_predictions.size(); ++i) {
    CHECK(cascaded.wrong_predictions[i].sample == expected.wrong_predictions[i].sample);
    CHECK(cascaded.wrong_predictions[i].scores.at(0).second ==
          Approx(expected.wrong_predictions[i].scores.at(0).second).epsilon(1e-5));
  }
  for (const int world_size : {2, 3}) {
    const auto results = results_of_ranks(world_size, [&](const comm::Communicator& communicator) {
      return evaluate_on(communicator, true);
    });
    for (const Evaluation& result : results) {
      CHECK(result.loss == cascaded.loss);
      CHECK(result.accuracy == cascaded.accuracy);
    }
  }
}

TEST_CASE("evaluation uses running statistics and changes neither weights nor buffers") {
  const auto model = tiny_model(1, /*with_batch_norm=*/true);
  model->train();
  std::vector<at::Tensor> before;
  for (const at::Tensor& buffer : model->buffers()) before.push_back(buffer.clone());
  const auto images = images_of(kCount);
  const Evaluation evaluation =
      evaluate(*model, *images, 10, comm::Communicator(), at::kCPU, [] {});
  CHECK(evaluation.accuracy == in_one_go(kCount, /*with_batch_norm=*/true).accuracy);
  const auto after = model->buffers();
  REQUIRE(after.size() == 3);
  for (std::size_t i = 0; i < after.size(); ++i) CHECK(after[i].equal(before[i]));
  for (const at::Tensor& parameter : model->parameters()) CHECK_FALSE(parameter.grad().defined());
}

constexpr std::int64_t kClasses = 3;
constexpr float kByModel = 40;  // every logit of the model

/// A model whose images are single numbers, which select a row of logits from a table.
class Table : public models::Model {
 public:
  explicit Table(at::Tensor rows) : rows_(std::move(rows)) {}

  at::Tensor forward(const at::Tensor& images) override {
    batches.push_back(images.size(0));
    types.push_back(images.scalar_type());
    return rows_.index_select(0, images.flatten().to(at::kLong)).to(images.scalar_type());
  }

  std::vector<std::int64_t> batches;
  std::vector<at::ScalarType> types;

 private:
  at::Tensor rows_;  // [samples,classes]
};

/// Returns up to 256 images of 1x1; each pixel is the sample's number.
data::ImageSet numbered_set(const std::vector<std::uint16_t>& labels, std::int64_t classes) {
  const auto owner =
      std::make_shared<std::pair<std::vector<std::uint8_t>, std::vector<std::uint16_t>>>(
          std::vector<std::uint8_t>(labels.size()), labels);
  std::iota(owner->first.begin(), owner->first.end(), std::uint8_t{0});
  data::ImageSet set;
  set.count = static_cast<std::int64_t>(labels.size());
  set.height = set.width = 1;
  set.classes = classes;
  set.images = owner->first;
  set.labels = owner->second;
  set.owner = owner;
  return set;
}

/// The metrics of an evaluation, computed with LibTorch's operations.
struct Metrics {
  std::vector<std::int64_t> samples, predicted, correct;  // per class
  double top5 = 0;
  double balanced = 0;
};

Metrics metrics_of(const at::Tensor& logits, const std::vector<std::uint16_t>& labels) {
  const std::int64_t classes = logits.size(1);
  const at::Tensor truth = at::tensor(std::vector<std::int64_t>(labels.begin(), labels.end()));
  // The first of equal logits is predicted.
  const at::Tensor order = std::get<1>(at::sort(logits, /*stable=*/true, 1, /*descending=*/true));
  const at::Tensor guess = order.select(1, 0);
  const auto count = [&](const at::Tensor& of) { return at::bincount(of, {}, classes); };
  const at::Tensor samples = count(truth);
  const at::Tensor correct = count(truth.masked_select(guess.eq(truth)));
  const auto numbers = [&](const at::Tensor& counts) {
    const auto* begin = counts.const_data_ptr<std::int64_t>();
    return std::vector<std::int64_t>(begin, begin + classes);
  };
  const at::Tensor first_five = order.narrow(1, 0, std::min<std::int64_t>(5, classes));
  const at::Tensor recalls = (correct.to(at::kDouble) / samples).masked_select(samples.gt(0));
  return {numbers(samples), numbers(count(guess)), numbers(correct),
          first_five.eq(truth.unsqueeze(1)).any(1).to(at::kDouble).mean().item<double>(),
          recalls.mean().item<double>()};
}

TEST_CASE("balanced accuracy, top-5 accuracy and counts are correct for any number of classes") {
  constexpr std::int64_t kSamples = 200;
  for (const std::int64_t classes : {3, 6, 300, 1024, 1025, 65536}) {
    INFO(classes << " classes");
    // With few distinct logits, ties are frequent and some samples are predicted correctly.
    at::Tensor logits = at::arange(kSamples * classes, at::kDouble)
                            .mul_(12.9898)
                            .sin_()
                            .mul_(4)
                            .round_()
                            .to(at::kFloat)
                            .view({kSamples, classes});
    std::vector<std::uint16_t> labels;
    for (std::int64_t sample = 0; sample < kSamples; ++sample) {
      labels.push_back(static_cast<std::uint16_t>(
          classes - 1 - sample * sample % std::min<std::int64_t>(classes, 40)));
      if (sample % 3 == 0) logits[sample][labels.back()] = 4;
    }
    const Metrics expected = metrics_of(logits, labels);
    EvaluationRequest request;
    request.predictions = {{1, 3}};
    for (const int ranks : {1, 2, 3}) {
      const auto results = results_of_ranks(ranks, [&](const comm::Communicator& communicator) {
        Table model(logits);
        const auto images =
            loader::make_batch_source(numbered_set(labels, classes),
                                      settings::NormalizeOptions{-0.5 / 255, 1.0 / 255}, at::kCPU);
        return evaluate(
            model, *images, 64, communicator, at::kCPU, [] {}, request);
      });
      const Evaluation& result = results.back();
      CHECK(result.counts.confusion.empty() == (classes > 1024));
      CHECK(result.counts.samples == expected.samples);
      CHECK(result.counts.predicted == expected.predicted);
      CHECK(result.counts.correct == expected.correct);
      CHECK(result.balanced_accuracy == Approx(expected.balanced));
      CHECK(result.top5_accuracy.has_value() == (classes > 5));
      if (classes > 5) CHECK(*result.top5_accuracy == Approx(expected.top5));
      for (const SamplePrediction& prediction : result.predictions) {
        REQUIRE(prediction.scores.size() == static_cast<std::size_t>(classes > 100 ? 5 : classes));
        const at::Tensor scores = logits[prediction.sample].to(at::kDouble).softmax(0);
        for (const auto& [label, score] : prediction.scores) {
          CHECK(score == Approx(scores[label].item<double>()));
        }
        CHECK((classes <= 100 ||
               prediction.scores.front().second == Approx(scores.max().item<double>())));
      }
      for (const SamplePrediction& wrong : result.wrong_predictions) {
        const at::Tensor scores = logits[wrong.sample].softmax(0);
        CHECK(wrong.scores.at(0).second ==
              Approx(scores[wrong.predicted_class].item<double>()).epsilon(1e-4));
      }
    }
  }
}

/// Returns images [n,1,1,1] with the numbers from `begin` to `end` - 1.
at::Tensor numbered(std::int64_t begin, std::int64_t end) {
  return at::arange(begin, end, at::kFloat).view({-1, 1, 1, 1});
}

/// Returns rows of `kClasses` numbers.
at::Tensor table(const std::vector<float>& numbers) {
  return at::tensor(numbers).view({-1, kClasses});
}

TEST_CASE("the model recomputes requested samples, and those that its bf16 copy may get wrong") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor cascaded = table({
      3,    1,   0,    // correct by a clear margin
      0,    3,   0,    // wrong by a clear margin
      0.75, 0,   0,    // correct by less than one
      64,   57,  0,    // correct by less than an eighth of the largest
      64,   55,  0,    // correct by a clear margin
      kNan, 0,   0,    // NaN
      8,    0,   0,    // correct by a clear margin, but requested
      2,    0.5, -32,  // correct by less than an eighth of the largest absolute value
  });
  const std::int64_t samples = cascaded.size(0);
  Table bf16_copy(cascaded);
  Table model(at::full({samples, kClasses}, kByModel));
  CascadedLogits logits(model, bf16_copy, /*batch_size=*/4);
  const at::Tensor labels = at::zeros({samples}, at::kLong);
  logits.add(numbered(0, 5), labels.narrow(0, 0, 5), {});
  CHECK(model.batches.empty());
  logits.add(numbered(5, samples), labels.narrow(0, 5, samples - 5), {{1, 2}});
  CHECK(model.batches == std::vector<std::int64_t>{4});
  const auto [result, result_labels] = logits.take();
  CHECK(model.batches == std::vector<std::int64_t>{4, 2});
  CHECK(model.types.front() == at::kFloat);
  CHECK(bf16_copy.types == std::vector<at::ScalarType>(2, at::kBFloat16));
  REQUIRE(result.size(0) == samples);
  CHECK(result.scalar_type() == at::kFloat);
  CHECK(result_labels.equal(labels));
  for (const std::int64_t sample : {0, 4}) {
    INFO("sample " << sample);
    CHECK(result[sample].equal(cascaded[sample]));
  }
  for (const std::int64_t sample : {1, 2, 3, 5, 6, 7}) {
    INFO("sample " << sample);
    CHECK(result[sample].eq(kByModel).all().item<bool>());
  }
}

TEST_CASE("taking the cascaded logits resets them") {
  Table bf16_copy(table({0, 9, 0, 9, 0, 0, 0, 0, 9}));
  Table model(at::full({3, kClasses}, kByModel));
  CascadedLogits logits(model, bf16_copy, /*batch_size=*/2);
  const at::Tensor labels = at::arange(3, at::kLong);
  logits.add(numbered(0, 2), labels.narrow(0, 0, 2), {});
  CHECK(logits.take().first.eq(kByModel).all().item<bool>());
  logits.add(numbered(2, 3), labels.narrow(0, 2, 1), {});
  const auto [result, result_labels] = logits.take();
  CHECK(result.equal(table({0, 0, 9})));
  CHECK(result_labels.equal(labels.narrow(0, 2, 1)));
  CHECK(model.batches == std::vector<std::int64_t>{2});
}

}  // namespace
}  // namespace mnist_train::eval
