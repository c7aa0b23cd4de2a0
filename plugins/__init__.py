"""What Airflow's web page shows beside its own: trainings and fleets."""
