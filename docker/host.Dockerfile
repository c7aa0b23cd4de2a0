# A training host: sshd, Python, torch for the CPU, and a user without rights who logs in by a key.
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# Host keys that the package makes would be the same for all who have the image.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssh-server python3-venv \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*

# Anything else that training imports goes into this environment; the connection names it.
RUN python3 -m venv /opt/torch
COPY requirements/torch.txt /opt/torch/
# Without this index torch comes with CUDA, and the image is some gigabytes larger.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/torch/bin/pip install --no-cache-dir \
    --extra-index-url ${TORCH_INDEX} --requirement /opt/torch/torch.txt

# '*' is no password; without it the account counts as locked, and keys are refused, too.
RUN useradd --create-home --shell /bin/bash --password '*' trainer && mkdir -p /run/sshd
COPY docker/sshd_config /etc/ssh/sshd_config
EXPOSE 22
CMD ["/usr/sbin/sshd", "-D", "-e"]
