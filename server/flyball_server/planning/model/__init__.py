"""Pipeline model: DAG, operating points, simulation."""
