// The `piper` program: the verbs on the models that ship.
#include "examples/models/registry.h"
#include "tools/piper/main.h"

int main(int argc, char** argv) { return piper::main(argc, argv, piper::models::registry()); }
