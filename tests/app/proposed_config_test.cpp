#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "data/sources.h"
#include "network/network.h"
#include "settings/run_config.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/picture_files.h"
#include "support/temp_folder.h"

namespace mnist_train::app {
namespace {

using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::ordered_json;

/// Photos of mixed sizes in two classes.
PictureFolder photos(std::vector<std::int64_t> class_sizes = {400, 420}) {
  PictureFolder pictures{"/photos", {}, {"cats", "dogs"}};
  pictures.survey.class_sizes = std::move(class_sizes);
  pictures.survey.count = 820;
  pictures.survey.height = 480;
  pictures.survey.width = 640;
  return pictures;
}

/// Grayscale characters of 28 x 28 pixels, in ten classes.
PictureFolder digits(std::int64_t of_each) {
  PictureFolder pictures{"/digits", {}, {}};
  for (int digit = 0; digit < 10; ++digit) {
    pictures.class_names.push_back(std::to_string(digit));
  }
  pictures.survey = {10 * of_each, 28, 28, /*same_size=*/1, /*gray=*/true};
  pictures.survey.class_sizes.assign(10, of_each);
  return pictures;
}

Json proposed(const PictureFolder& pictures) {
  return propose_config(pictures, std::nullopt).config;
}

/// Checks that a run would accept the config and that its network fits the images.
void check_sound(const PictureFolder& pictures) {
  const ProposedConfig proposal = propose_config(pictures, std::nullopt);
  const std::string text = proposal.config.dump();
  CAPTURE(text);
  const settings::RunConfig config = settings::parse_run_config({"proposal", text, {}});
  const network::ImageShape images{*config.data.channels, config.data.size->height,
                                   config.data.size->width,
                                   static_cast<std::int64_t>(pictures.class_names.size())};
  CHECK(network::make_network(config.model, images).parameters > 0);
  CHECK(proposal.reasons.size() >= 5);
}

TEST_CASE("photos of several shapes are cropped and mirrored, and some are held out") {
  const Json config = proposed(photos());
  const Json& data = config.at("data");
  CHECK(data.at("train") == "/photos");
  CHECK(data.at("test") == 0.2);
  CHECK(data.at("validation") == 0.1);
  CHECK(data.at("size") == 64);
  CHECK(data.at("channels") == 3);
  CHECK(data.at("fit") == "crop");
  CHECK(data.at("augment").front() == "horizontal_flip");
  CHECK_FALSE(config.contains("class_weights"));
  CHECK(data.at("on_bad_sample") == "skip");
  check_sound(photos());
}

TEST_CASE("imbalanced classes are weighted, and balanced accuracy selects the best epoch") {
  const Json config = proposed(photos({100, 160}));
  CHECK(config.at("class_weights") == "balanced");
  CHECK(config.at("checkpoint") == Json{{"best_by", "balanced_accuracy"}});
  check_sound(photos({100, 160}));
}

TEST_CASE("grayscale characters keep their size and one channel, and are never mirrored") {
  const Json data = proposed(digits(1000)).at("data");
  CHECK(data.at("size") == 28);
  CHECK(data.at("channels") == 1);
  CHECK_FALSE(data.contains("fit"));
  CHECK(data.at("augment").front().at("name") == "rotate");
  check_sound(digits(1000));
}

TEST_CASE("the size is that of most small pictures, even if a few differ") {
  PictureFolder pictures = digits(10);
  pictures.survey.same_size = 0.95;
  const ProposedConfig proposal = propose_config(pictures, std::nullopt);
  CHECK(proposal.config.at("data").at("size") == 28);
  CHECK(proposal.config.at("data").at("fit") == "crop");
  CHECK(std::ranges::count(proposal.reasons, "data.size: pictures are typically 28x28") == 1);
  pictures.survey.width = 40;
  CHECK(proposed(pictures).at("data").at("size") == Json{28, 40});
  pictures.survey.same_size = 0.5;
  CHECK(proposed(pictures).at("data").at("size") == 28);
  pictures.survey.elongated = 0.2;  // bars are added, so the longer side decides
  CHECK(proposed(pictures).at("data").at("size") == 40);
}

TEST_CASE("fewer pictures mean more epochs, smaller batches and no validation set") {
  const Json few = proposed(digits(10));
  const Json some = proposed(digits(1'000));
  const Json many = proposed(digits(100'000));
  CHECK(few.at("epochs") > some.at("epochs"));
  CHECK(some.at("epochs") > many.at("epochs"));
  CHECK(few.at("batch_size") < some.at("batch_size"));
  CHECK(some.at("batch_size") < many.at("batch_size"));
  CHECK_FALSE(few.at("data").contains("validation"));
  CHECK(many.at("data").at("test") == 0.1);
  CHECK_FALSE(some.at("data").contains("decode"));
}

TEST_CASE("pictures of any size get a network that fits them") {
  const std::int64_t height = GENERATE(1, 8, 17, 28, 32, 47, 48, 64, 65, 300, 5000);
  const std::int64_t width = GENERATE(1, 30, 64, 200);
  PictureFolder pictures = photos();
  pictures.survey.height = height;
  pictures.survey.width = width;
  pictures.survey.same_size = GENERATE(1., 0.95, 0.5);
  check_sound(pictures);
}

TEST_CASE("drawings and elongated pictures are padded; pictures of equal shape keep it") {
  PictureFolder pictures = photos();
  pictures.survey.transparent = 0.9;
  CHECK(proposed(pictures).at("data").at("fit") == "pad");
  pictures = photos();
  pictures.survey.elongated = 0.2;
  CHECK(proposed(pictures).at("data").at("fit") == "pad");
  pictures = photos();
  pictures.survey.same_size = 1;
  CHECK(proposed(pictures).at("data").at("size") == Json{64, 85});
  CHECK_FALSE(proposed(pictures).at("data").contains("fit"));
  check_sound(pictures);
  pictures.survey.elongated = 1;
  using Sizes = std::pair<Json, Json>;
  for (const auto& [from, to] :
       {Sizes{{32, 200}, {32, 200}}, Sizes{{128, 431}, {64, 216}}, Sizes{{1000, 100}, {405, 40}}}) {
    pictures.survey.height = from[0];
    pictures.survey.width = from[1];
    CHECK(proposed(pictures).at("data").at("size") == to);
    CHECK_FALSE(proposed(pictures).at("data").contains("fit"));
  }
}

TEST_CASE(
    "unusable pictures are skipped, a test folder is used, and large data sets are streamed") {
  PictureFolder pictures = photos({400'000, 400'000});
  pictures.test = "/photos/test";
  pictures.survey.unusable = {"cats/1.png: byte 0: not a PNG"};
  const ProposedConfig proposal = propose_config(pictures, std::nullopt);
  CHECK(proposal.config.at("data").at("on_bad_sample") == "skip");
  CHECK(proposal.config.at("data").at("test") == "/photos/test");
  CHECK(proposal.config.at("data").at("decode") == "stream");
  check_sound(pictures);
}

TEST_CASE("given weights, the proposed config fine-tunes their network") {
  PictureFolder pictures = photos();
  pictures.survey.gray = true;
  const Json config =
      propose_config(pictures,
                     InitialWeights{"/w.pth", settings::ModelName::kTorchvisionMobileNetV2})
          .config;
  CHECK(config.at("model") == Json{{"name", "torchvision-mobilenet_v2"},
                                   {"weights", {{"file", "/w.pth"}, {"new", "head"}}}});
  CHECK(config.at("parameters").at(0) == Json{{"match", "*"}, {"learning_rate_factor", 0.1}});
  CHECK(config.at("parameters").at(1).at("match") == "head");
  CHECK(config.at("data").at("channels") == 3);
  CHECK(config.at("data").at("size") == 128);
  CHECK(config.at("epochs") < proposed(pictures).at("epochs"));
}

TEST_CASE("folders named train, val and test are used as sets, not as classes") {
  const testing::TempFolder folder;
  for (const char* name : {"Train/a/1.png", "Train/b/1.png", "Train/b/2.png", "val/a/1.png"}) {
    folder.write(name, testing::png(9, 9));
  }
  PictureFolder pictures = open_picture_folder(folder.path());
  CHECK(pictures.train == folder.path() / "Train");
  CHECK(pictures.test == folder.path() / "val");
  CHECK(pictures.class_names == std::vector<std::string>{"a", "b"});
  CHECK(pictures.survey.class_sizes == std::vector<std::int64_t>{1, 2});
  folder.write("test/a/1.png", testing::png(9, 9));
  CHECK(open_picture_folder(folder.path()).test == folder.path() / "test");
}

TEST_CASE("names of sets are recognised in any spelling") {
  const std::vector<std::pair<std::string, std::string>> rows{{"TRAIN", "TEST"},
                                                              {"Train", "Valid"},
                                                              {"Train", "Val"},
                                                              {"train", "dev"},
                                                              {"training_set", "test_set"},
                                                              {"Training Set", "Testing-Set"},
                                                              {"train_data", "evaluation"},
                                                              {"trainset", "validation_set"},
                                                              {"train_images", "eval"},
                                                              {"seg_train", "seg_test"},
                                                              {"train2017", "val2017"}};
  for (const auto& [train, test] : rows) {
    INFO(train << ", " << test);
    const testing::TempFolder folder;
    for (const char* name : {"/a/1.png", "/b/1.png"}) {
      folder.write(train + name, testing::png(9, 9));
      folder.write(test + name, testing::png(9, 9));
    }
    const PictureFolder pictures = open_picture_folder(folder.path());
    CHECK(pictures.train == folder.path() / train);
    CHECK(pictures.test == folder.path() / test);
    CHECK(pictures.warning.empty());
  }
}

TEST_CASE("sets may contain a folder of the same name, and other folders are named as unused") {
  const testing::TempFolder folder;
  for (const char* name :
       {"seg_train/seg_train/a/1.png", "seg_train/seg_train/b/1.png", "seg_test/seg_test/a/1.png",
        "seg_test/seg_test/b/1.png", "seg_pred/seg_pred/1.png", "val/a/1.png"}) {
    folder.write(name, testing::png(9, 9));
  }
  const PictureFolder pictures = open_picture_folder(folder.path());
  CHECK(pictures.train == folder.path() / "seg_train/seg_train");
  CHECK(pictures.test == folder.path() / "seg_test/seg_test");
  CHECK(pictures.class_names == std::vector<std::string>{"a", "b"});
  CHECK(pictures.unused == std::vector<std::string>{"seg_pred", "val"});
}

TEST_CASE("classes that look like splits cause a warning") {
  const testing::TempFolder folder;
  const auto write = [&](const std::string& name) { folder.write(name, testing::png(9, 9)); };
  for (const char* name : {"fold1/a/1.png", "fold1/b/1.png", "fold2/a/1.png"}) write(name);
  CHECK(open_picture_folder(folder.path()).warning.empty());  // b is only in one of them
  write("fold2/b/more/1.png");
  CHECK_THAT(open_picture_folder(folder.path()).warning,
             ContainsSubstring("class folders (fold1, fold2) contain the same subfolders (a, b)"));
  // A single subfolder of the same name is a matter of packing.
  const testing::TempFolder packed;
  for (const char* name : {"cat/images/1.png", "dog/images/1.png"}) {
    packed.write(name, testing::png(9, 9));
  }
  CHECK(open_picture_folder(packed.path()).warning.empty());
}

TEST_CASE("the error about a folder that cannot be trained on suggests a remedy") {
  const testing::TempFolder folder;
  const auto message = [&](const std::filesystem::path& path) {
    const auto failure = testing::error_of([&] { (void)open_picture_folder(path); });
    CHECK(failure.code == ExitCode::kData);
    return failure.message;
  };
  CHECK_THAT(message(folder.path()), ContainsSubstring("no class folders with pictures"));
  CHECK_THAT(message(folder.path() / "none"), ContainsSubstring("put folders of pictures"));
  folder.write("all/cats/1.png", testing::png(9, 9));
  CHECK_THAT(message(folder.path()), ContainsSubstring("only one class, all; if its folders are "
                                                       "the classes, use "));
  CHECK_THAT(message(folder.path() / "all"),
             ContainsSubstring("put the pictures of each class into a separate folder"));
}

}  // namespace
}  // namespace mnist_train::app
