# Airflow with this provider, in the versions that its tests run with. The context is the checkout.
ARG BASE=debian:bookworm-slim
FROM ${BASE}

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssh-client python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH AIRFLOW_HOME=/opt/airflow PYTHONUNBUFFERED=1

# Before the checkout, so that a change of the provider does not install Airflow anew.
WORKDIR /opt/build
COPY requirements requirements
RUN pip install --no-cache-dir --no-deps --requirement requirements/airflow.txt
# The dependency group `executors`.
RUN pip install --no-cache-dir \
    --constraint requirements/airflow.txt --constraint requirements/dev.txt \
    apache-airflow-providers-celery asyncpg psycopg2-binary redis async-timeout

COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

# A new volume takes over the owner of the folder where it is mounted.
RUN useradd --uid 50000 --create-home airflow && install -d -o airflow /opt/airflow
USER airflow
WORKDIR /opt/airflow
