#include "settings/augment_options.h"

#include "support/catch.h"
#include "support/config_text.h"

namespace mnist_train::settings {
namespace {

using namespace testing;

std::vector<std::string> names_of(const AugmentList& list) {
  std::vector<std::string> names;
  for (const AugmentationOptions& entry : list) names.emplace_back(name_of(entry));
  return names;
}

AugmentList read_list(const std::string& list) {
  return read(R"({"data":{"augment":)" + list + "}}").data.augment;
}

/// Returns the text of an effective config that contains the list.
std::string written(const AugmentList& list) {
  RunConfig config;
  config.data.augment = list;
  return write_run_config(config, true);
}

TEST_CASE("the list keeps its order, and every kind is read") {
  const AugmentList list = read_list(R"([
    {"name":"resize","size":[32,30]}, {"name":"random_crop","size":28,"padding":4}, "horizontal_flip",
    {"name":"horizontal_flip","probability":0.25}, {"name":"rotate","degrees":15},
    {"name":"random_crop","padding":2}, {"name":"mixup","weight":0.5,"scope":"global"},
    {"name":"normalize","mean":0.5,"std":0.25}, {"name":"cutout","size":8}])");
  CHECK(written(list) == written({ResizeOptions{{32, 30}}, RandomCropOptions{ImageSize{28, 28}, 4},
                                  HorizontalFlipOptions{}, HorizontalFlipOptions{0.25},
                                  RotateOptions{15}, RandomCropOptions{std::nullopt, 2},
                                  MixupOptions{std::nullopt, 0.5, MixupScope::kGlobal},
                                  NormalizeOptions{0.5, 0.25}, CutoutOptions{8}}));
  CHECK(written(read(written(list)).data.augment) == written(list));
  CHECK(names_of(list) == std::vector<std::string>{"resize", "random_crop", "horizontal_flip",
                                                   "horizontal_flip", "rotate", "random_crop",
                                                   "mixup", "normalize", "cutout"});
  CHECK(read_list("[]").empty());
}

TEST_CASE("omitted keys have their defaults") {
  CHECK(written(read_list(R"(["mixup",{"name":"normalize"}])")) ==
        written({MixupOptions{1.0, std::nullopt, MixupScope::kLocal}, NormalizeOptions{0.0, 1.0}}));
  CHECK(written(read_list(R"([{"name":"mixup","alpha":null,"weight":0.25}])")) ==
        written({MixupOptions{std::nullopt, 0.25, MixupScope::kLocal}}));
}

TEST_CASE("the error about an invalid entry has its pointer") {
  using Case = std::pair<const char*, std::string>;
  static const std::string kNames =
      R"("random_crop", "random_resized_crop", "horizontal_flip", "vertical_flip", "rotate", )"
      R"("resize", "color_jitter", "trivial_augment", "normalize", "random_erasing", "cutout", )"
      R"("mixup" or "cutmix")";
  const auto [list, message] = GENERATE_REF(values<Case>({
      {R"("mixup")", R"(: expected a list of at most 32 entries, found the string "mixup")"},
      {R"(["flip"])",
       "/0: expected " + kNames +
           R"( or an object with a name, found the string "flip"; did you mean "horizontal_flip"?)"},
      {R"(["mixup",{"name":"Rotate"}])",
       "/1/name: expected " + kNames + R"(, found the string "Rotate"; did you mean "rotate"?)"},
      {R"([{"degrees":5}])", R"(/0: needs "name")"},
      {R"(["rotate"])", R"(/0: needs "degrees")"},
      {R"(["random_crop"])", "/0: has no effect without size or padding"},
      {R"([{"name":"rotate"}])", R"(/0: needs "degrees")"},
      {R"([{"name":"resize","size":0}])",
       "/0/size: expected an integer from 1 to 16384 or [height, width], found 0"},
      {R"([{"name":"resize","size":[1,2,3]}])",
       "/0/size: expected one number or [height, width], found a list"},
      {R"([{"name":"resize","size":[1,"2"]}])",
       R"(/0/size/1: expected an integer from 1 to 16384, found the string "2")"},
      {R"([{"name":"horizontal_flip","p":0.5}])",
       R"(/0/p: unknown key "p"; valid here: name, probability)"},
      {R"([{"name":"cutout","size":4,"holes":2}])",
       R"(/0/holes: unknown key "holes"; valid here: name, size)"},
      {R"([{"name":"cutout","size":4,"seed":2}])",
       R"(/0/seed: unknown key "seed"; it belongs at the top level)"},
      {R"([{"name":"random_crop"}])", "/0: has no effect without size or padding"},
      {R"([{"name":"random_crop","size":null,"padding":0}])",
       "/0: has no effect without size or padding"},
      {R"([{"name":"resize","size":8},{"name":"random_crop","size":[10,11],"padding":1}])",
       "/1: random_crop needs 10x11 pixels, but images of 8x8 with padding 1 are smaller"},
      {R"([{"name":"normalize","std":0}])",
       "/0/std: expected a number from 1e-37 to 1e+38 or a list with one number per channel, found "
       "0"},
      {R"([{"name":"normalize","mean":[]}])",
       "/0/mean: expected one number per channel, found a list"},
      {R"([{"name":"normalize","mean":"dark"}])",
       R"(/0/mean: expected a number from -1e+38 to 1e+38 or a list with one number per channel, )"
       R"(found the string "dark")"},
      {R"([{"name":"normalize"},{"name":"normalize","mean":1}])",
       "/1: is the second normalize; use only one"},
      {R"([{"name":"mixup","alpha":1,"weight":0.5}])",
       "/0/weight: conflicts with alpha; set only one of them (null unsets a key)"},
      {R"([{"name":"random_resized_crop","size":8,"scale":[0.5,0.2]}])",
       "/0/scale: expected [min, max] with min <= max, found a list"},
      {R"([{"name":"random_resized_crop","size":8,"ratio":[1]}])",
       "/0/ratio: expected [min, max] with min <= max, found a list"},
      {R"([{"name":"color_jitter"}])",
       "/0: has no effect without brightness, contrast, saturation or hue"},
      {R"([{"name":"color_jitter","hue":0.6}])",
       "/0/hue: expected a number from 0 to 0.5 or [min, max], found 0.6"},
      {R"([{"name":"rotate","degrees":9,"fill":"white"}])",
       R"(/0/fill: expected a number from 0 to 255 or "background" or a list with one number per )"
       R"(channel, found the string "white")"},
      {R"([{"name":"random_erasing","fill":[0,256,0]}])",
       "/0/fill/1: expected a number from 0 to 255, found 256"},
      {R"([{"name":"normalize"},{"name":"random_erasing","fill":1}])",
       "/1/fill: must be 0 (the mean) after normalize; put random_erasing before it to fill with "
       "colours"},
      {R"([{"name":"normalize"},"trivial_augment"])",
       "/1: changes colours, so it must come before normalize"},
      {R"(["mixup","cutmix"])",
       ": has both mixup and cutmix; each sample is mixed only once, so remove one"},
  }));
  CAPTURE(list);
  const auto lines = lines_for(std::string(R"({"data":{"augment":)") + list + "}}");
  REQUIRE(lines.size() == 1);
  const std::string line = lines[0];
  CHECK(line.substr(line.find("/data/augment") + 13) == message);
}

TEST_CASE("entries from torchvision have its defaults and are written as given") {
  const std::string text =
      R"([{"name":"random_resized_crop","size":9},"random_erasing","trivial_augment","vertical_flip",)"
      R"({"name":"color_jitter","brightness":0.4,"hue":[-0.1,0.2]},)"
      R"({"name":"rotate","degrees":5,"fill":"background"},)"
      R"({"name":"random_crop","padding":1,"fill":[1,2,3]},"cutmix"])";
  ColorJitterOptions jitter;
  jitter.brightness = 0.4;
  jitter.hue = Interval{-0.1, 0.2};
  const std::string config =
      R"({"data":{"format":"cifar","train":"a","test":"b","augment":)" + text + "}}";
  const AugmentList list = read(config).data.augment;
  CHECK(written(list) ==
        written({RandomResizedCropOptions{{9, 9}, {0.08, 1}, {3.0 / 4, 4.0 / 3}},
                 RandomErasingOptions{0.5, {0.02, 0.33}, {0.3, 3.3}, {}}, TrivialAugmentOptions{},
                 VerticalFlipOptions{0.5}, jitter, RotateOptions{5, {0.0, true}},
                 RandomCropOptions{std::nullopt, 1, {std::vector<double>{1, 2, 3}}},
                 CutmixOptions{1, MixupScope::kLocal}}));
  CHECK(written(read(write_run_config(read(config), true)).data.augment) == written(list));
  CHECK(names_of(list) == std::vector<std::string>{
                              "random_resized_crop", "random_erasing", "trivial_augment",
                              "vertical_flip", "color_jitter", "rotate", "random_crop", "cutmix"});
  CHECK(jitter_interval(0.4, 1) == Interval{0.6, 1.4});
  CHECK(jitter_interval(3.0, 1) == Interval{0, 4});
  CHECK(jitter_interval(0.5, 0) == Interval{-0.5, 0.5});
  CHECK(augmented_size(list, {4, 5}) == ImageSize{9, 9});
}

TEST_CASE("fill \"background\" is a colour or its gray value, and lists must match the channels") {
  const AugmentList list{RotateOptions{5, {0.0, true}}, RandomErasingOptions{}};
  const auto fill = [&](std::int64_t channels) {
    return std::get<RotateOptions>(list_for_images(list, channels, {255, 100, 0})[0]).fill;
  };
  CHECK(fill(3) == Fill{std::vector<double>{255, 100, 0}, false});
  CHECK(fill(1) == Fill{135.0, false});  // like Pillow: 0.299 * 255 + 0.587 * 100
  const auto message = [](const AugmentList& wrong, std::int64_t channels) {
    return error_of([&] { (void)list_for_images(wrong, channels, {}); }).message;
  };
  const PerChannel three = std::vector<double>{1, 2, 3};
  CHECK(message({RotateOptions{5, {three}}}, 1) ==
        "/data/augment/0/fill: lists 3 numbers, but the images have 1 channel");
  CHECK(message({TrivialAugmentOptions{}}, 2) ==
        "/data/augment/0/name: needs images of 1 or 3 channels, not 2");
  CHECK(
      lines_for(R"({"data":{"augment":[{"name":"rotate","degrees":5,"fill":[1,2,3]}]}})").size() ==
      1);
}

TEST_CASE("all invalid entries are reported at once, and normalize may be set only once") {
  CHECK(lines_for(R"({"data":{"augment":["flip",{"name":"rotate"},{"name":"cutout","size":0}]}})")
            .size() == 3);
  const auto lines =
      lines_for(R"({"data":{"normalize":{"mean":0},"augment":["mixup",{"name":"normalize"}]}})");
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0],
             ContainsSubstring(
                 "/data/normalize: conflicts with normalize in augment; set only one of them"));
  const auto listed = read(R"({"data":{"augment":[{"name":"normalize","mean":0.5,"std":2}]}})");
  CHECK(effective_normalize(listed.data, 1) == NormalizeOptions{0.5, 2.0});
}

TEST_CASE("per-channel statistics are written as given") {
  const std::string statistics = R"({"mean":[0.5,0.25,0.5],"std":2})";
  const RunConfig config =
      read(R"({"data":{"format":"cifar","train":"a","test":"b","normalize":)" + statistics + "}}");
  CHECK(config.data.normalize == NormalizeOptions{std::vector<double>{0.5, 0.25, 0.5}, 2.0});
  const std::string written = write_run_config(config, true);
  CHECK(strict_json::Json::parse(written)["data"]["normalize"].dump() == statistics);
  CHECK(read(written).data.normalize == config.data.normalize);
}

TEST_CASE("the error about a list that does not match the channels names its key") {
  const auto data = [](const std::string& normalize) {
    return read(R"({"data":{"format":"idx","train":"a","test":"b",)" + normalize + "}}").data;
  };
  const auto message = [](const DataOptions& options, std::int64_t channels) {
    const auto failure = error_of([&] { (void)effective_normalize(options, channels); });
    if (!failure.message.empty()) CHECK(failure.code == ExitCode::kConfig);
    return failure.message;
  };
  const DataOptions plain = data(R"("normalize":{"mean":[1,2,3],"std":[4,5]})");
  CHECK(message(plain, 3) ==
        "/data/normalize/std: lists 2 numbers, but the images have 3 channels");
  CHECK(message(plain, 1) ==
        "/data/normalize/mean: lists 3 numbers, but the images have 1 channel");
  const DataOptions listed = data(R"("augment":[{"name":"normalize","mean":[1,2,3]}])");
  CHECK(message(listed, 3).empty());
  CHECK_THAT(message(listed, 4), ContainsSubstring("mean: lists 3 numbers, but the images have 4"));
}

TEST_CASE("the list determines the final image size") {
  const ImageSize mnist{28, 28};
  CHECK(augmented_size({}, mnist) == mnist);
  CHECK(augmented_size({RandomCropOptions{std::nullopt, 4}, RotateOptions{5}}, mnist) == mnist);
  CHECK(augmented_size({ResizeOptions{{32, 40}}}, mnist) == ImageSize{32, 40});
  CHECK(augmented_size({ResizeOptions{{32, 40}}, RandomCropOptions{ImageSize{20, 42}, 1}}, mnist) ==
        ImageSize{20, 42});
  CHECK(augmented_size({RandomCropOptions{ImageSize{30, 28}, 1}}, mnist) == ImageSize{30, 28});
  CHECK_ERROR(
      augmented_size({RotateOptions{1}, RandomCropOptions{ImageSize{31, 28}, 1}}, mnist),
      ExitCode::kConfig,
      "/data/augment/1: random_crop needs 31x28 pixels, but images of 28x28 with padding 1 are "
      "smaller");
}

}  // namespace
}  // namespace mnist_train::settings
