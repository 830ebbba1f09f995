// The `piper` program: the verbs on the models that ship.
#include "examples/models/registry.h"
#include "tools/piper/main.h"

int main(int argc, char** argv) {
  piper::Registry registry;
  registry.add("gpt", piper::models::make_gpt)
      .add("llama", piper::models::make_llama)
      .add("mlp", piper::models::make_mlp)
      .add("moe", piper::models::make_moe)
      .add("torchscript", piper::models::make_torchscript);
  return piper::main(argc, argv, registry);
}
