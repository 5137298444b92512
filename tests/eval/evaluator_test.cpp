#include "eval/evaluator.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "loader/batch_source.h"
#include "models/loss.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/small_images.h"
#include "support/tiny_model.h"

namespace mnist_train::eval {
namespace {

using testing::Approx;
using testing::on_connected_ranks;
using testing::small_images;
using testing::tiny_model;

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
  const loader::Batch all = images->gather_sequential({0, count});
  const auto loss = models::batch_loss(model->forward(all.images), all.labels);
  const auto samples = static_cast<double>(count);
  return {loss.loss_sum.item<double>() / samples, loss.correct.item<double>() / samples, count};
}

TEST_CASE("every sample counts once, however large the batches are") {
  const Evaluation expected = in_one_go(kCount);
  const auto model = tiny_model(1);
  for (const std::int64_t batch_size : {1, 5, 36, 37, 1000}) {
    const auto images = images_of(kCount);
    std::int64_t batches = 0;
    const Evaluation evaluation =
        evaluate(*model, *images, batch_size, comm::Communicator(), at::kCPU, [&] { ++batches; });
    INFO("batches of " << batch_size);
    CHECK(evaluation.samples == kCount);
    CHECK(evaluation.accuracy == expected.accuracy);
    CHECK(evaluation.loss == Approx(expected.loss).epsilon(1e-6));
    CHECK(batches == (kCount + batch_size - 1) / batch_size);
  }
}

TEST_CASE("ranks share the samples and agree on the result, ranks without any too") {
  for (const std::int64_t count : {kCount, std::int64_t{2}, std::int64_t{1}}) {
    const Evaluation expected = in_one_go(count);
    for (const int world_size : {2, 3}) {
      std::vector<Evaluation> results(static_cast<std::size_t>(world_size));
      on_connected_ranks(world_size, [&](comm::Communicator& communicator) {
        const auto images = images_of(count);
        results[static_cast<std::size_t>(communicator.rank())] =
            evaluate(*tiny_model(1), *images, 4, communicator, at::kCPU, [] {});
      });
      for (const Evaluation& result : results) {
        CHECK(result.samples == count);
        CHECK(result.accuracy == expected.accuracy);
        CHECK(result.loss == Approx(expected.loss).epsilon(1e-6));
        CHECK(result.loss == results[0].loss);
      }
    }
  }
}

TEST_CASE("the bits of an evaluation in shards do not depend on the ranks") {
  EvaluationRequest request;
  request.shards = 3;
  const auto evaluate_on = [&request](const comm::Communicator& communicator) {
    return evaluate(
        *tiny_model(1), *images_of(kCount), 4, communicator, at::kCPU, [] {}, request);
  };
  const Evaluation expected = evaluate_on(comm::Communicator());
  for (const int world_size : {2, 3}) {
    std::vector<Evaluation> results(static_cast<std::size_t>(world_size));
    on_connected_ranks(world_size, [&](comm::Communicator& communicator) {
      results[static_cast<std::size_t>(communicator.rank())] = evaluate_on(communicator);
    });
    for (const Evaluation& result : results) {
      CHECK(result.loss == expected.loss);
      CHECK(result.accuracy == expected.accuracy);
    }
  }
  CHECK(expected.loss == Approx(in_one_go(kCount).loss).epsilon(1e-6));
}

TEST_CASE("confusion, predictions and extra sums come with the sums, whoever evaluates") {
  EvaluationRequest request;
  request.predictions = {{0, 3}, {10, 14}, {30, kCount}};
  request.extra_sums = {1, 0.5};
  const auto images = images_of(kCount);
  const Evaluation alone = evaluate(
      *tiny_model(1), *images, 4, comm::Communicator(), at::kCPU, [] {}, request);
  REQUIRE(alone.confusion.size() == 100);
  std::int64_t all = 0;
  std::int64_t right = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    all += alone.confusion[i];
    if (i % 11 == 0) right += alone.confusion[i];
  }
  CHECK(all == kCount);
  CHECK(static_cast<double>(right) / kCount == Approx(alone.accuracy));
  REQUIRE(alone.predictions.size() == 14);
  CHECK(alone.predictions[2].sample == 2);
  CHECK(alone.predictions[3].sample == 10);
  CHECK(alone.predictions.back().sample == kCount - 1);
  for (const SamplePrediction& prediction : alone.predictions) {
    const auto& scores = prediction.scores;
    CHECK(std::accumulate(scores.begin(), scores.end(), 0.0) == Approx(1));
    CHECK(std::max_element(scores.begin(), scores.end()) - scores.begin() ==
          prediction.predicted_class);
  }
  CHECK(alone.extra_sums == request.extra_sums);

  for (const int world_size : {2, 3}) {
    std::vector<Evaluation> results(static_cast<std::size_t>(world_size));
    on_connected_ranks(world_size, [&](comm::Communicator& communicator) {
      const auto own = images_of(kCount);
      results[static_cast<std::size_t>(communicator.rank())] = evaluate(
          *tiny_model(1), *own, 4, communicator, at::kCPU, [] {}, request);
    });
    for (const Evaluation& result : results) {
      CHECK(result.confusion == alone.confusion);
      REQUIRE(result.predictions.size() == alone.predictions.size());
      for (std::size_t i = 0; i < alone.predictions.size(); ++i) {
        CHECK(result.predictions[i].sample == alone.predictions[i].sample);
        CHECK(result.predictions[i].predicted_class == alone.predictions[i].predicted_class);
        for (std::size_t label = 0; label < 10; ++label) {
          CHECK(result.predictions[i].scores[label] ==
                Approx(alone.predictions[i].scores[label]).epsilon(1e-5).margin(1e-9));
        }
      }
      CHECK(result.extra_sums == std::vector<double>{1.0 * world_size, 0.5 * world_size});
    }
  }
}

TEST_CASE("wrong predictions are all there, whoever evaluates, and only where they are asked for") {
  EvaluationRequest request;
  request.predictions = {{0, kCount}};
  request.wrong_predictions = true;
  const std::vector<std::uint8_t> labels = [] {
    const auto images = images_of(kCount);
    const auto span = images->images().labels;
    return std::vector<std::uint8_t>(span.begin(), span.end());
  }();
  for (const int world_size : {1, 2, 3}) {
    std::vector<Evaluation> results(static_cast<std::size_t>(world_size));
    on_connected_ranks(world_size, [&](comm::Communicator& communicator) {
      const auto own = images_of(kCount);
      results[static_cast<std::size_t>(communicator.rank())] = evaluate(
          *tiny_model(1), *own, 4, communicator, at::kCPU, [] {}, request);
    });
    for (const Evaluation& result : results) {
      std::size_t next = 0;
      for (const SamplePrediction& prediction : result.predictions) {
        const auto sample = static_cast<std::size_t>(prediction.sample);
        if (prediction.predicted_class == labels[sample]) continue;
        REQUIRE(next < result.wrong_predictions.size());
        const WrongPrediction& wrong = result.wrong_predictions[next++];
        CHECK(wrong.sample == prediction.sample);
        CHECK(wrong.predicted_class == prediction.predicted_class);
        CHECK(wrong.confidence ==
              Approx(prediction.scores[static_cast<std::size_t>(wrong.predicted_class)]));
      }
      CHECK(next > 0);
      CHECK(next == result.wrong_predictions.size());
    }
  }
  const auto images = images_of(kCount);
  CHECK(evaluate(*tiny_model(1), *images, 4, comm::Communicator(), at::kCPU, [] {
        }).wrong_predictions.empty());
}

TEST_CASE("a draft in bf16 leaves accuracy and predictions as they are, and nearly the loss") {
  constexpr std::int64_t kMany = 300;
  const auto sure_model = [] {
    const auto model = tiny_model(1);
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.mul_(4);
    return model;
  };
  const auto draft_of = [&] {
    const auto draft = sure_model();
    draft->compute_in_bfloat16();
    return draft;
  };
  EvaluationRequest request;
  request.predictions = {{0, 3}, {kMany - 2, kMany}};
  request.wrong_predictions = true;
  request.shards = 3;
  const auto evaluate_on = [&](const comm::Communicator& communicator, models::Model* by_draft) {
    EvaluationRequest own_request = request;
    own_request.draft = by_draft;
    return evaluate(
        *sure_model(), *images_of(kMany), 16, communicator, at::kCPU, [] {}, own_request);
  };
  const Evaluation expected = evaluate_on(comm::Communicator(), nullptr);
  const Evaluation drafted = evaluate_on(comm::Communicator(), draft_of().get());
  CHECK(drafted.accuracy == expected.accuracy);
  CHECK(drafted.confusion == expected.confusion);
  CHECK(drafted.loss == Approx(expected.loss).epsilon(1e-3));
  CHECK(drafted.loss != expected.loss);
  REQUIRE(drafted.predictions.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t score = 0; score < 10; ++score) {
      CHECK(drafted.predictions[i].scores[score] ==
            Approx(expected.predictions[i].scores[score]).epsilon(1e-5));
    }
  }
  REQUIRE(drafted.wrong_predictions.size() == expected.wrong_predictions.size());
  for (std::size_t i = 0; i < expected.wrong_predictions.size(); ++i) {
    CHECK(drafted.wrong_predictions[i].sample == expected.wrong_predictions[i].sample);
    CHECK(drafted.wrong_predictions[i].confidence ==
          Approx(expected.wrong_predictions[i].confidence).epsilon(1e-5));
  }
  for (const int world_size : {2, 3}) {
    std::vector<Evaluation> results(static_cast<std::size_t>(world_size));
    on_connected_ranks(world_size, [&](comm::Communicator& communicator) {
      results[static_cast<std::size_t>(communicator.rank())] =
          evaluate_on(communicator, draft_of().get());
    });
    for (const Evaluation& result : results) {
      CHECK(result.loss == drafted.loss);
      CHECK(result.accuracy == drafted.accuracy);
    }
  }
}

TEST_CASE("evaluating changes neither weights nor buffers, and uses the stored statistics") {
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

}  // namespace
}  // namespace mnist_train::eval
