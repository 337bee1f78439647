# Each compiler run takes several of the solver's source files at once, so that it reads their headers once.
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
