"""Pipeline parallelism: cutting a model into stages, and running a schedule's actions over them."""
