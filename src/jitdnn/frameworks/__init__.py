"""Front ends for models that other frameworks wrote. Each imports its framework, and nothing imports them."""
