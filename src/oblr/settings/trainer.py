"""Lightning's trainer: all that it takes."""

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MinLen

from oblr.settings.kinds import Count, Few, Natural, Part, Positive, Section, Text, section

NONE_OF_IT = "Lightning's; training has no such batches"
BATCHES = (Natural | Annotated[float, Ge(0), Le(1)] | None, NONE_OF_IT)
SWITCH = bool | None

CLASSES: dict[str, Section] = {
    "oblr.run.strategies.SingleDevice": section(),
    "oblr.run.strategies.DDP": section(),
    "oblr.run.strategies.FSDP": section(
        replicas=(Few, "copies of the policy, each sharded over as many devices (HSDP); 1: over all of them"),
    ),
    "lightning.Trainer": section(
        accelerator=(Literal["auto", "cpu", "gpu", "cuda"], "what computes; auto: GPUs where there are any"),
        strategy=(Part("oblr.run"), "how devices share the policy"),
        devices=(
            Few | Annotated[list[Natural], MinLen(1)] | Literal["auto"],
            "how many on a machine, or all of them",
        ),
        num_nodes=(Few, "machines"),
        precision=(Literal["32-true", "bf16-mixed"], "bf16-mixed rounds weights to bfloat16 where they are used"),
        logger=(Literal[False], "in pretraining none; in training `logger` is it"),
        fast_dev_run=(Literal[False], NONE_OF_IT),
        max_epochs=(Count, "steps"),
        min_epochs=(Natural | None, "steps that are taken whatever ends the run"),
        max_steps=(Count | Literal[-1], "optimizer steps, of pretraining; −1: no limit"),
        min_steps=(Natural | None, "optimizer steps that are taken whatever ends the run"),
        max_time=(Text, "longest run, as DD:HH:MM:SS; null: no limit"),
        limit_train_batches=BATCHES,
        limit_val_batches=BATCHES,
        limit_test_batches=BATCHES,
        limit_predict_batches=BATCHES,
        overfit_batches=(Natural | Annotated[float, Ge(0), Le(1)], NONE_OF_IT),
        val_check_interval=BATCHES,
        check_val_every_n_epoch=(Count | None, NONE_OF_IT),
        num_sanity_val_steps=(Natural | None, NONE_OF_IT),
        log_every_n_steps=(Count | None, "steps between two that are logged"),
        enable_checkpointing=(SWITCH, "whether Lightning saves checkpoints of its own kind"),
        enable_progress_bar=(SWITCH, "whether Lightning shows its own"),
        enable_model_summary=(SWITCH, "whether Lightning prints it"),
        accumulate_grad_batches=(Literal[1], "the step packs its own micro-batches"),
        gradient_clip_val=(Positive | None, "largest norm of the gradient, of pretraining; null: none"),
        gradient_clip_algorithm=(Literal["norm", "value"] | None, "of pretraining: what is clipped"),
        deterministic=(
            bool | Literal["warn"] | None,
            "whether only algorithms are used that always give the same bits",
        ),
        benchmark=(SWITCH, "whether cuDNN tries algorithms out"),
        inference_mode=(bool, NONE_OF_IT),
        use_distributed_sampler=(bool, NONE_OF_IT),
        profiler=(Literal["simple", "advanced", "pytorch"] | None, "Lightning's profile of its own hooks"),
        detect_anomaly=(bool, "whether autograd looks for NaN in every operation, slowly"),
        barebones=(Literal[False], "the run's own callbacks are needed"),
        sync_batchnorm=(bool, NONE_OF_IT),
        reload_dataloaders_every_n_epochs=(Natural, NONE_OF_IT),
        default_root_dir=(Text, "run folder"),
        enable_autolog_hparams=(bool, "whether Lightning logs hyperparameters"),
        model_registry=(Any, "of LitLogger"),
    ),
}
